package org.omnidraft.engine.learning

import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.attribute.FileTime
import java.time.Instant
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.flushFolder
import org.omnidraft.engine.files.makeFolder
import org.omnidraft.engine.files.reading
import org.omnidraft.engine.files.replaceFile

/**
 * An entry of [AdapterStore.list].
 *
 * @property size bytes on disk.
 * @property used when it was last saved or loaded.
 * @property metadata null where the file cannot be used; [problem] says why.
 */
class StoredAdapter(
    val name: String,
    val path: Path,
    val size: Long,
    val used: Instant,
    val metadata: AdapterMetadata?,
    val problem: String,
)

/**
 * Adapters by name in one folder, which one process uses.
 *
 * A save is written beside the old file and flushed; then it is renamed over the old file, and the
 * folder is flushed. Whenever the process is killed, the store opens with the old adapter or the new
 * one, whole. After every save the files take at most [maxBytes]: the least recently saved or loaded
 * adapters are removed, never the one being saved.
 *
 * @param folder made at the first save. What a killed save left in it is removed now.
 */
class AdapterStore(val folder: Path, private val maxBytes: Long = DEFAULT_MAX_BYTES) {
    private val lock = Any()

    init {
        if (Files.isDirectory(folder)) {
            reading(folder) {
                Files.newDirectoryStream(folder, ".*$SUFFIX.tmp").use { all -> all.forEach(Files::deleteIfExists) }
            }
        }
    }

    /**
     * Keep an adapter, replacing one of the same name, drafter and target.
     *
     * @return the names of the adapters that were removed to stay within the bound.
     * @throws OmniDraftException the name cannot be used or is taken by another drafter's or target's
     *   adapter, the adapter does not hold together, it is larger than the store may be, or it cannot
     *   be written. What was stored stays as it was.
     */
    fun save(name: String, adapter: Adapter): List<String> = synchronized(lock) {
        val path = path(name)
        val metadata = adapter.metadata.copy(updated = AdapterMetadata.now())
        val content = AdapterFile.content(adapter, metadata)
        try {
            checkOwner(name, AdapterFile.readMetadata(path), metadata.drafter, metadata.target)
        } catch (_: ModelNotFoundException) {
        } catch (_: DamagedFileException) {
            // A damaged file has no owner left to protect; a newer version's has, and throws.
        }
        if (content.remaining() > maxBytes) {
            throw OmniDraftException(
                "The adapter takes ${content.remaining()} bytes, the whole store may take $maxBytes. Allow " +
                    "it more, or learn with a smaller rank."
            )
        }
        makeFolder(folder)
        replaceFile(path, content)
        evict(path)
    }

    /**
     * Read an adapter, and note that it was used.
     *
     * @param drafter the models that are to use it: this and [target].
     * @param optimizer see [AdapterFile.read].
     * @throws ModelNotFoundException there is none of that name.
     * @throws DamagedFileException it fails a checksum or cannot be read.
     * @throws OmniDraftException it is another drafter's or target's, or a newer version's.
     */
    fun load(name: String, drafter: ModelKey, target: ModelKey, optimizer: Boolean = true): Adapter {
        val path = path(name)
        val adapter = AdapterFile.read(path, optimizer)
        checkOwner(name, adapter.metadata, drafter, target)
        runCatching { Files.setLastModifiedTime(path, FileTime.from(Instant.now())) } // reading is what counts
        return adapter
    }

    /** What is stored, the most recently used first; tensors are not read. */
    fun list(): List<StoredAdapter> = files().reversed().mapNotNull { path ->
        val name = path.fileName.toString().removeSuffix(SUFFIX)
        var problem = ""
        val metadata = try {
            AdapterFile.readMetadata(path)
        } catch (_: ModelNotFoundException) {
            return@mapNotNull null
        } catch (error: OmniDraftException) {
            problem = error.message.orEmpty()
            null
        }
        reading(path) {
            StoredAdapter(name, path, Files.size(path), Files.getLastModifiedTime(path).toInstant(), metadata, problem)
        }
    }

    /**
     * Remove an adapter, a damaged one too.
     *
     * @throws ModelNotFoundException there is none of that name.
     * @throws OmniDraftException it cannot be removed.
     */
    fun delete(name: String) = synchronized(lock) {
        val path = path(name)
        if (!reading(path) { Files.deleteIfExists(path) }) throw ModelNotFoundException("There is no adapter $path.")
        flushFolder(folder)
    }

    private fun path(name: String): Path {
        if (!NAME.matches(name)) {
            throw OmniDraftException(
                "'${name.take(80)}' cannot name an adapter. Use up to 64 lower-case letters, digits, dots, " +
                    "hyphens and underscores, a letter or digit first."
            )
        }
        return folder.resolve(name + SUFFIX)
    }

    /** The stored files, the least recently used first. */
    private fun files(): List<Path> {
        if (!Files.isDirectory(folder)) return emptyList()
        return reading(folder) {
            Files.newDirectoryStream(folder, "*$SUFFIX").use { all ->
                all.filter { NAME.matches(it.fileName.toString().removeSuffix(SUFFIX)) && Files.isRegularFile(it) }
            }.sortedWith(compareBy({ Files.getLastModifiedTime(it) }, { it.fileName.toString() }))
        }
    }

    private fun evict(kept: Path): List<String> = reading(folder) {
        val files = files()
        var total = files.sumOf { Files.size(it) }
        val evicted = ArrayList<String>()
        for (other in files) {
            if (total <= maxBytes) break
            if (other == kept) continue
            total -= Files.size(other)
            Files.deleteIfExists(other)
            evicted += other.fileName.toString().removeSuffix(SUFFIX)
        }
        evicted
    }

    private fun checkOwner(name: String, metadata: AdapterMetadata, drafter: ModelKey, target: ModelKey) {
        val roles = listOf(Triple("drafter", metadata.drafter, drafter), Triple("target", metadata.target, target))
        for ((role, owner, user) in roles) {
            if (owner.sha256 != user.sha256) {
                throw OmniDraftException(
                    "Adapter '$name' belongs to the $role $owner, not to $user. Use it with that $role, or " +
                        "choose another name for this one's."
                )
            }
        }
    }

    companion object {
        const val DEFAULT_MAX_BYTES = 500_000_000L
        private const val SUFFIX = ".adapter"
        private val NAME = Regex("[a-z0-9][a-z0-9._-]{0,63}")
    }
}
