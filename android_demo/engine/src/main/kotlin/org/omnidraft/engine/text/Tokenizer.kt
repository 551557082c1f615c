package org.omnidraft.engine.text

import java.nio.file.Files
import java.nio.file.Path
import java.time.Clock
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.LARGEST_TOKENIZER
import org.omnidraft.engine.files.parseObject
import org.omnidraft.engine.files.readBounded
import org.omnidraft.engine.files.reading

/**
 * A model's tokenizer: text ↔ ids ↔ the exact bytes each token stands for, with its special tokens
 * and its chat template. Ids and bytes are those of OmniDraft's Python tokenizer.
 *
 * It holds memory outside the JVM: close it. One instance serves one thread.
 */
class Tokenizer private constructor(files: Map<String, ByteArray>, clock: Clock) : AutoCloseable {
    private val plain: TokenizerLibrary
    private val file: TokenizerFile
    private val template: ChatTemplate?
    private val tokens: Array<String>
    private val shown: Array<ByteArray>

    /** Id → surface bytes; null for special tokens, markers such as `<think>` and unused ids. */
    val surfaces: Array<ByteArray?>

    /** The token that begins a text, if there is one. */
    val bosId: Int?

    /** Whether a text is to begin with it. */
    val addBos: Boolean

    /** Every token that ends a text or the assistant's turn. */
    val eosIds: Set<Int>

    init {
        val text = files.getValue(TOKENIZER_FILE).decodeToString()
        plain = TokenizerLibrary(text)
        try {
            file = TokenizerFile(text)
            val config = files.json("tokenizer_config.json")
            val generation = files.json("generation_config.json")
            val mapped = files.json("special_tokens_map.json") // some models name them only there
            val names = SPECIAL_NAMES.mapNotNull { key ->
                (tokenName(config[key]) ?: tokenName(mapped[key]))?.let { key to it }
            }.toMap()
            template = chatTemplate(files, config)?.let { ChatTemplate(it, names, clock) }

            tokens = file.tokens()
            surfaces = arrayOfNulls(tokens.size)
            shown = Array(tokens.size) { ByteArray(0) }
            val eos = readSurfaces()
            // The post-processor may know of a first token that the configuration does not name.
            val implied = plain.ids("", addSpecial = true)
            val named = names["bos_token"]
            val bos = (if (named != null) file.idOf(named) else integer(generation["bos_token_id"]))
                ?: implied.firstOrNull()
            bosId = bos?.takeIf { it in tokens.indices }
            addBos = bosId != null && (boolean(config["add_bos_token"]) ?: (bosId in implied))
            val ends = generation["eos_token_id"]
            eos += (ends as? JsonArray ?: listOf(ends)).mapNotNull(::integer)
            names["eos_token"]?.let(file::idOf)?.let { eos += it }
            eosIds = eos
        } catch (error: Throwable) {
            plain.close()
            throw error
        }
    }

    /** Fill the bytes of tokens; the added ones that end a text are returned. */
    private fun readSurfaces(): MutableSet<Int> {
        val surface: (String) -> ByteArray =
            if (file.byteLevel) ::byteLevelSurface else ::sentencePieceSurface
        for ((id, token) in tokens.withIndex()) {
            if (token.isEmpty()) continue
            surfaces[id] = surface(token)
            shown[id] = surfaces[id]!!
        }
        val ends = HashSet<Int>()
        for ((id, added) in file.added) {
            val content = added.content
            val data = if (file.byteLevel) content.encodeToByteArray() else sentencePieceSurface(content)
            val learned = !file.byteLevel && content in file.vocabulary
            val isMarker = looksLikeMarker(content) && !learned
            // What a token shows to a reader: a marker is shown though it has no surface.
            surfaces[id] = if (added.special || isMarker) null else data
            shown[id] = if (added.special || content in END_TOKENS) ByteArray(0) else data
            if (content in END_TOKENS) ends += id
        }
        return ends
    }

    /** Number of ids; a model may have more columns, which no text ever uses. */
    val vocabSize: Int get() = tokens.size

    /** The bytes a token stands for, null if it is special or unknown. Not to be changed. */
    fun surface(token: Int): ByteArray? = surfaces.getOrNull(token)

    /** A token as its vocabulary spells it, "" for an id without a token. */
    fun token(id: Int): String = tokens.getOrElse(id) { "" }

    /** Whether a token is a SentencePiece byte token such as `<0x0A>`. */
    fun isByteToken(token: Int): Boolean = !file.byteLevel && byteTokenValue(tokens[token]) != null

    /**
     * Token ids of a text.
     *
     * @param parseSpecial read names of special tokens as those tokens, not as text.
     * @param addBos begin with [bosId]; by default as the model wants it.
     * @throws OmniDraftException the text holds half of a surrogate pair.
     */
    fun encode(text: String, parseSpecial: Boolean = false, addBos: Boolean = this.addBos): IntArray {
        checkText(text)
        val library = if (parseSpecial) plain else file.literal(specialNames)
        val ids = library.ids(text)
        // A text with markers may begin with it of itself.
        return if (!addBos || bosId == null || ids.firstOrNull() == bosId) ids else intArrayOf(bosId) + ids
    }

    /** The bytes a token adds to the text a reader sees; empty for a special token. */
    fun shownBytes(token: Int): ByteArray = shown.getOrElse(token) { ByteArray(0) }

    /** The text of a continuation, special tokens left out: [TextStream] gives the same in pieces. */
    fun decode(ids: IntArray): String = textOf(joined(ids.map(::shownBytes)))

    /** Whether the model was trained to chat; if not, prompts are used raw. */
    val hasChatTemplate: Boolean get() = template != null

    /**
     * Whether the chat template shows what a message of a role says.
     *
     * @param role such as "system".
     */
    fun takesRole(role: String): Boolean = template?.takesRole(role) ?: false

    /**
     * The text of a conversation, ready for the assistant's answer.
     *
     * @throws OmniDraftException the model has no chat template, or it refuses the messages.
     */
    fun applyChat(messages: List<Message>, addGenerationPrompt: Boolean = true): String =
        (template ?: throw OmniDraftException("This model has no chat template. Use the raw prompt."))
            .render(messages, addGenerationPrompt)

    /**
     * Token ids of [applyChat]; the template itself says whether a BOS token leads.
     *
     * Only the markers of the template are special tokens. Where a message spells the name of one it
     * is text, of which a user may type what he likes.
     *
     * @throws OmniDraftException see [applyChat], [encode].
     */
    fun encodeChat(messages: List<Message>, addGenerationPrompt: Boolean = true): IntArray {
        for (message in messages) { // before the template moves its characters
            checkText(message.role)
            checkText(message.content)
        }
        val render = { all: List<Message> -> applyChat(all, addGenerationPrompt) }
        val found = segments(messages, markers, render)
            ?: return encode(render(messages), parseSpecial = true, addBos = false)
        val ids = ArrayList<Int>()
        for (part in found) {
            part.marker?.let { ids += it.index }
            if (part.text.isNotEmpty()) ids += encodeBehind(part).asList()
        }
        return ids.toIntArray()
    }

    /** Tokens of a text behind a marker, on which white space and prefixes depend. */
    private fun encodeBehind(part: Segment): IntArray {
        if (!part.typed) {
            val text = part.marker?.name.orEmpty() + part.text
            val ids = encode(text, parseSpecial = true, addBos = false)
            return if (part.marker == null) ids else ids.drop(ids.indexOf(part.marker.index) + 1).toIntArray()
        }
        checkText(part.text)
        // Any added token leads as well as the marker does, whose own name is text here.
        val lead = unusedCharacter(part.text)
        val library = file.literal(specialNames + markers.keys, lead.toString())
        if (part.marker == null) return library.ids(part.text)
        return library.ids(lead + part.text).drop(1).toIntArray()
    }

    private val specialNames: Set<String> =
        file.added.values.filter { it.special }.map { it.content }.toSet()

    /**
     * The tokens that the names in a rendered conversation stand for, by name: those flagged special
     * and, whatever their flag, those that the template uses and those that end a text.
     */
    private val markers: Map<String, Marker> by lazy {
        val words = template?.words().orEmpty()
        buildMap {
            for ((id, added) in file.added) {
                val name = added.content
                val used = looksLikeMarker(name) && (name in END_TOKENS || name in words)
                if (name.length < 2 || !(added.special || used)) continue
                val structural = added.special || name in END_TOKENS ||
                    name.startsWith("<|") || name.startsWith("<\uff5c")
                put(name, Marker(id, name, added.lstrip, added.rstrip, !structural))
            }
        }
    }

    /**
     * Tokens that spell exactly these bytes, as the tokenizer would split them in isolation.
     *
     * No space is put in front and no character is normalised. What is not UTF-8, or does not come
     * back exactly, is spelled by the longest tokens that fit.
     *
     * @return ids whose surfaces, joined, are [data]; null if the vocabulary cannot spell it.
     */
    fun segment(data: ByteArray): IntArray? {
        val ids = ArrayList<Int>()
        for (piece in splitInvalid(data)) {
            ids += segmentText(piece.text) ?: longestMatch(piece.text.encodeToByteArray()) ?: return null
            ids += longestMatch(piece.invalid) ?: return null
        }
        return ids.toIntArray()
    }

    private fun segmentText(text: String): List<Int>? {
        val ids = ArrayList<Int>()
        for (id in file.isolated(specialNames).ids(text)) {
            if (surfaces[id] != null) {
                ids += id
                continue
            }
            // A marker's name in plain text: spell it with ordinary tokens.
            val spelled = shown[id].takeIf { it.isNotEmpty() } ?: tokens[id].encodeToByteArray()
            ids += longestMatch(spelled) ?: return null
        }
        val back = joined(ids.map { surfaces[it] ?: ByteArray(0) })
        return ids.takeIf { back.contentEquals(text.encodeToByteArray()) }
    }

    private fun longestMatch(data: ByteArray): List<Int>? {
        val key = data.toString(Charsets.ISO_8859_1)
        val ids = ArrayList<Int>()
        var start = 0
        while (start < key.length) {
            val most = minOf(key.length, start + longestSurface)
            val end = (most downTo start + 1).firstOrNull { key.substring(start, it) in bySurface } ?: return null
            ids += bySurface.getValue(key.substring(start, end))
            start = end
        }
        return ids
    }

    /** Surface, a byte each character → id: an ordinary token before a byte token, then the lowest. */
    private val bySurface: Map<String, Int> by lazy {
        val (bytes, others) = tokens.indices.partition(::isByteToken)
        HashMap<String, Int>().apply {
            for (id in others + bytes) {
                val data = surfaces[id] ?: continue
                if (data.isNotEmpty()) putIfAbsent(data.toString(Charsets.ISO_8859_1), id)
            }
        }
    }
    private val longestSurface: Int by lazy { bySurface.keys.maxOfOrNull { it.length } ?: 0 }

    override fun close() {
        plain.close()
        file.close()
    }

    companion object {
        private const val TOKENIZER_FILE = "tokenizer.json"
        private val FILES = listOf(
            TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json",
            "generation_config.json", "chat_template.jinja", "chat_template.json",
        )
        private val SPECIAL_NAMES =
            listOf("bos", "eos", "unk", "sep", "pad", "cls", "mask").map { "${it}_token" }

        /**
         * The tokenizer of a model's folder.
         *
         * @throws ModelNotFoundException the folder holds no `tokenizer.json`.
         * @throws DamagedFileException a file is not what its name says.
         * @throws OmniDraftException a file cannot be read, or the native library is missing.
         */
        fun load(folder: Path): Tokenizer {
            val present = FILES.filter { Files.isRegularFile(folder.resolve(it)) }
            if (TOKENIZER_FILE !in present) {
                throw ModelNotFoundException(
                    "$folder holds no $TOKENIZER_FILE. Copy a folder here that `omnidraft models " +
                        "pull` or `omnidraft export` wrote."
                )
            }
            val files = present.associateWith { name ->
                reading(folder) { readBounded(folder.resolve(name), LARGEST_TOKENIZER) }
            }
            return of(files)
        }

        /** The same, of the files' contents by name. */
        internal fun of(
            files: Map<String, ByteArray>, clock: Clock = Clock.systemDefaultZone(),
        ): Tokenizer = try {
            Tokenizer(files, clock)
        } catch (error: IllegalArgumentException) { // of which SerializationException is one
            throw DamagedFileException(
                "The model's tokenizer is damaged: ${error.message?.lineSequence()?.first()?.take(200)}. " +
                    "Copy the model again.",
                error,
            )
        }
    }
}

private fun checkText(text: String) {
    var at = 0
    while (at < text.length) {
        val point = text.codePointAt(at)
        if (point in 0xd800..0xdfff) {
            throw OmniDraftException(
                "A text holds what is no character at position $at (U+${point.toString(16).uppercase()}, " +
                    "a half of one). Decode it as UTF-8 first."
            )
        }
        at += Character.charCount(point)
    }
}

private fun Map<String, ByteArray>.json(name: String): JsonObject {
    val content = this[name] ?: return JsonObject(emptyMap())
    try {
        return Json.parseObject(content) ?: throw SerializationException("it does not hold an object")
    } catch (error: SerializationException) {
        throw DamagedFileException(
            "$name is damaged: ${error.message?.lineSequence()?.first()?.take(200)}. Copy the model again.", error,
        )
    }
}

private fun integer(value: JsonElement?): Int? =
    (value as? JsonPrimitive)?.takeIf { !it.isString }?.content?.toIntOrNull()

private fun boolean(value: JsonElement?): Boolean? = when {
    value == null -> null
    value is JsonPrimitive && !value.isString -> value.content !in setOf("false", "null", "0")
    else -> true
}

private fun text(value: JsonElement?): String? =
    (value as? JsonPrimitive)?.takeIf { it.isString && it !is JsonNull }?.content

/** A special token is configured as a string or as an object with its content. */
private fun tokenName(value: JsonElement?): String? = text(if (value is JsonObject) value["content"] else value)

private fun chatTemplate(files: Map<String, ByteArray>, config: JsonObject): String? {
    files["chat_template.jinja"]?.let { content ->
        return try {
            content.decodeToString(throwOnInvalidSequence = true)
        } catch (error: CharacterCodingException) {
            throw DamagedFileException("chat_template.jinja is not UTF-8. Copy the model again.", error)
        }
    }
    val found = files.json("chat_template.json")["chat_template"] ?: config["chat_template"]
    if (found !is JsonArray) return text(found)
    val default = found.filterIsInstance<JsonObject>().firstOrNull { text(it["name"]) == "default" }
    return text(default?.get("template"))
}
