package org.omnidraft.engine.text

import kotlinx.serialization.Serializable
import kotlinx.serialization.builtins.MapSerializer
import kotlinx.serialization.builtins.serializer
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.decodeFromJsonElement
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.omnidraft.engine.DamagedFileException

private const val MOST_TOKENS = 1 shl 22
private val tolerant = Json { ignoreUnknownKeys = true; coerceInputValues = true; explicitNulls = false }

/** A token that is found in a text before the model of the tokenizer sees it. */
@Serializable
internal data class AddedToken(
    val id: Int = -1,
    val content: String,
    val lstrip: Boolean = false,
    val rstrip: Boolean = false,
    val special: Boolean = false,
)

/**
 * A `tokenizer.json`: its vocabulary, and variants of it.
 *
 * Hugging Face's library can be told to read the names of special tokens as text; its binding for
 * Java cannot. A variant whose added tokens lack the special ones does the same. Where a token that
 * is left out lies outside the model's vocabulary, later ones get other ids, which are mapped back.
 */
internal class TokenizerFile(text: String) {
    private val members = JsonSpans(text)
    private val states = members.element("added_tokens")?.let { it as? JsonArray } ?: JsonArray(emptyList())
    private val model = JsonSpans(members["model"] ?: throw DamagedFileException(
        "tokenizer.json has no model. Copy the model again."
    ))
    private val normalizer = members.element("normalizer") ?: JsonNull
    private val preTokenizer = members.element("pre_tokenizer") ?: JsonNull
    private val opened = HashMap<Variant, TokenizerLibrary>()

    /** The model's own tokens. */
    val vocabulary: Map<String, Int> = readVocabulary()

    /** Added tokens by the ids that the library gives them. */
    val added: Map<Int, AddedToken> = assigned(states).associate { (token, id) -> id to token }

    private val addedIds = added.entries.associate { (id, token) -> token.content to id }

    /** Whether tokens spell bytes in GPT-2's alphabet. */
    val byteLevel: Boolean = listOf(members["decoder"], members["pre_tokenizer"])
        .any { it != null && "\"ByteLevel\"" in it }

    /** All tokens by id, "" for an id without a token. */
    fun tokens(): Array<String> {
        val all = vocabulary + addedIds
        val last = all.values.maxOrNull() ?: -1
        if (last >= MOST_TOKENS || all.values.any { it < 0 }) {
            throw DamagedFileException(
                "tokenizer.json has a token $last, which no vocabulary needs. Copy the model again."
            )
        }
        val tokens = Array(last + 1) { "" }
        for ((token, id) in all) tokens[id] = token
        return tokens
    }

    /** The id of a token's name, or null. */
    fun idOf(name: String): Int? = addedIds[name] ?: vocabulary[name]

    /** The tokenizer that does not read the names of [hidden] tokens as those tokens. */
    fun literal(hidden: Set<String>, lead: String = ""): TokenizerLibrary =
        open(Variant(normalizer, preTokenizer, hidden, lead))

    /** The same without a space put in front and without lossy normalisation. */
    fun isolated(hidden: Set<String>): TokenizerLibrary =
        open(Variant(exactNormalizer(normalizer), withoutPrefixSpace(preTokenizer), hidden, ""))

    /** Give back what variants hold. */
    fun close() {
        opened.values.forEach { it.close() }
        opened.clear()
    }

    /** What differs from the file; [lead] is one more added token, "" for none. */
    private data class Variant(
        val normalizer: JsonElement,
        val preTokenizer: JsonElement,
        val hidden: Set<String>,
        val lead: String,
    )

    private fun open(variant: Variant): TokenizerLibrary = opened.getOrPut(variant) {
        val kept = states.filter { content(it) !in variant.hidden }
        val more = if (variant.lead.isEmpty()) emptyList() else listOf(leading(variant.lead))
        val list = JsonArray(kept + more)
        val originals = assigned(list).mapNotNull { (token, id) -> addedIds[token.content]?.let { id to it } }
        val values = mapOf(
            "truncation" to JsonNull, "padding" to JsonNull, "post_processor" to JsonNull,
            "normalizer" to variant.normalizer, "pre_tokenizer" to variant.preTokenizer,
            "added_tokens" to list,
        )
        TokenizerLibrary(members.with(values), originals.filter { (id, own) -> id != own }.toMap())
    }

    private fun content(state: JsonElement) = state.jsonObject["content"]?.jsonPrimitive?.content

    private fun leading(name: String) = JsonObject(
        mapOf(
            "id" to JsonPrimitive(MOST_TOKENS), "content" to JsonPrimitive(name),
            "single_word" to JsonPrimitive(false), "lstrip" to JsonPrimitive(false),
            "rstrip" to JsonPrimitive(false), "normalized" to JsonPrimitive(false),
            "special" to JsonPrimitive(false),
        )
    )

    /** The ids that the library gives: the model's, or the next behind all. */
    private fun assigned(list: JsonArray): List<Pair<AddedToken, Int>> {
        val ids = LinkedHashMap<String, Int>()
        var last = -1
        return list.map { tolerant.decodeFromJsonElement<AddedToken>(it) }
            .filter { it.content.isNotEmpty() }
            .map { token ->
                val id = ids.getOrPut(token.content) {
                    vocabulary[token.content] ?: (maxOf(last, vocabulary.size - 1) + 1)
                }
                last = maxOf(last, id)
                token to id
            }
    }

    private fun readVocabulary(): Map<String, Int> {
        val text = model["vocab"] ?: return emptyMap()
        if (text.startsWith("{")) {
            return Json.decodeFromString(MapSerializer(String.serializer(), Int.serializer()), text)
        }
        // Unigram: a list of pieces and their scores.
        return Json.parseToJsonElement(text).jsonArray.withIndex()
            .associate { (id, piece) -> piece.jsonArray[0].jsonPrimitive.content to id }
    }
}

/** Keep only the replacement of spaces by ▁: everything else changes or adds text. */
private fun exactNormalizer(state: JsonElement): JsonElement {
    val parts = ((state as? JsonObject)?.get("normalizers") as? JsonArray) ?: listOf(state)
    val kept = parts.filter { it is JsonObject && it.type == "Replace" && it["content"] == JsonPrimitive("▁") }
    if (kept.isEmpty()) return JsonNull
    return JsonObject(mapOf("type" to JsonPrimitive("Sequence"), "normalizers" to JsonArray(kept)))
}

private fun withoutPrefixSpace(state: JsonElement): JsonElement {
    if (state !is JsonObject) return state
    return when (state.type) {
        "Sequence" -> {
            val parts = (state["pretokenizers"] as? JsonArray).orEmpty().map(::withoutPrefixSpace)
            JsonObject(state + ("pretokenizers" to JsonArray(parts)))
        }
        "Metaspace" -> JsonObject(state - "add_prefix_space" + ("prepend_scheme" to JsonPrimitive("never")))
        "ByteLevel" -> JsonObject(state + ("add_prefix_space" to JsonPrimitive(false)))
        else -> state
    }
}

private val JsonObject.type: String? get() = (this["type"] as? JsonPrimitive)?.content
