package org.omnidraft.engine

import java.nio.file.Files
import java.nio.file.Path
import kotlin.math.min
import kotlin.math.round
import org.omnidraft.engine.core.CoreException
import org.omnidraft.engine.core.CostAwarePolicy
import org.omnidraft.engine.core.Costs
import org.omnidraft.engine.core.Lookup
import org.omnidraft.engine.core.NgramCache
import org.omnidraft.engine.core.Policy
import org.omnidraft.engine.core.Speculation
import org.omnidraft.engine.core.Speller
import org.omnidraft.engine.core.Vocabulary
import org.omnidraft.engine.core.VocabularyPair
import org.omnidraft.engine.decoding.KeptCosts
import org.omnidraft.engine.files.makeFolder
import org.omnidraft.engine.files.sha256

/**
 * A target and a drafter: which tokens stand for which, the n-grams, and what drafting costs.
 *
 * @param folder where the n-gram cache is kept; null: in memory only.
 * @param ngrams an n-gram cache as bytes, to begin with in place of the folder's; empty: none.
 * @param costsFolder where measured costs are kept; null: in memory only.
 */
internal class Pairing(
    private val target: LoadedModel,
    private val drafter: LoadedModel,
    folder: Path?,
    ngrams: ByteArray,
    costsFolder: Path?,
    measure: () -> Costs,
) : AutoCloseable {
    private val pair = paired(drafter.vocabulary(), target.vocabulary())
    private val file = folder?.resolve("%016x.ngrams".format(pair.fingerprint))
    private val speller = Speller(pair, ::segment, specials = sharedSpecials())
    private val lookup = Lookup(target.model.vocabSize)
    private val policies = HashMap<Double, Policy>()
    private val costs = lazy { KeptCosts.open(costsFolder?.resolve("${costsKey()}.json"), measure) }

    /** Of this pair; it learns with every answer. */
    val cache: NgramCache = open(ngrams)

    /**
     * What a generation needs to draft trees by what passes cost here, and by looking up.
     *
     * @param temperature a policy learns for each: what a score says of acceptance depends on it.
     */
    fun byCost(temperature: Double): Speculation {
        val kind = round(10 * min(2.0, temperature))
        return speculation(policies.getOrPut(kind) { CostAwarePolicy(costs.value.costs) }, tree = true, lookup)
    }

    /** The same by any policy; [tree] false drafts chains, [lookup] null looks nothing up. */
    fun speculation(policy: Policy, tree: Boolean, lookup: Lookup? = null): Speculation {
        val tokenizer = drafter.tokenizer
        val bos = tokenizer.bosId.takeIf { tokenizer.addBos }
        return Speculation(
            cache,
            speller,
            policy,
            lookup,
            begin = listOfNotNull(bos).toIntArray(),
            tree = tree,
            scoresTrees = drafter.model.scoresTrees,
            maxLength = drafter.model.maxLength,
            held = drafter.model.held,
        )
    }

    /**
     * Keep the n-grams and what passes cost, whole or not at all.
     *
     * @throws OmniDraftException they cannot be written.
     */
    fun save() {
        if (costs.isInitialized()) costs.value.save()
        val path = file ?: return
        makeFolder(path.parent)
        cache.save(path)
    }

    override fun close() {
        listOf(cache, lookup, speller, pair).forEach(AutoCloseable::close)
        policies.values.forEach(AutoCloseable::close)
        if (costs.isInitialized()) costs.value.close()
    }

    // What a pass takes depends on the files, the threads and the device.
    private fun costsKey(): String {
        val models = listOf(target, drafter).map { "${it.key.name} ${it.key.sha256} ${it.bytes} ${it.threads}" }
        val device = listOf("os.name", "os.arch").map { System.getProperty(it) }
        return sha256("$models $device ${Runtime.getRuntime().availableProcessors()}".encodeToByteArray()).take(32)
    }

    private fun paired(drafter: Vocabulary, target: Vocabulary): VocabularyPair = try {
        VocabularyPair(drafter, target)
    } finally { // the pair keeps what it needs of them
        drafter.close()
        target.close()
    }

    private fun open(ngrams: ByteArray): NgramCache {
        if (ngrams.isNotEmpty()) return NgramCache.fromBytes(ngrams, pair)
        if (file == null || !Files.exists(file)) return NgramCache(pair)
        return try {
            NgramCache.load(file, pair)
        } catch (_: CoreException) {
            NgramCache(pair) // damaged, and replaced when this one is saved
        }
    }

    private fun segment(bytes: ByteArray): IntArray? =
        drafter.tokenizer.segment(bytes)?.takeIf { all -> all.all { it < drafter.model.vocabSize } }

    /** Special tokens of the target that the drafter knows by the same name. */
    private fun sharedSpecials(): Map<Int, Int> {
        val known = specials(drafter).entries.associate { it.value to it.key }
        return specials(target).mapNotNull { (token, name) -> known[name]?.let { token to it } }.toMap()
    }

    private fun specials(model: LoadedModel): Map<Int, String> =
        (0 until min(model.model.vocabSize, model.tokenizer.vocabSize))
            .filter { model.tokenizer.surface(it) == null && model.tokenizer.token(it).isNotEmpty() }
            .associateWith(model.tokenizer::token)
}
