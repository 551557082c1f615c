package org.omnidraft.engine.core

import kotlin.io.path.readLines
import org.omnidraft.engine.Fixtures

/** A block of tests/vectors/generations.txt. */
class RecordedAnswer(private val lines: Map<String, List<String>>) {
    val name get() = lines.getValue("answer").single()
    val prompt get() = ints("prompt")
    val ends get() = ints("ends")
    val begin get() = ints("begin")
    val mostTokens get() = ints("limits")[0]
    val targetLength get() = ints("limits")[1]
    val drafterLength get() = ints("limits")[2]
    val seed get() = lines.getValue("seed").single().toULong().toLong()
    val verification get() = Verification.valueOf(lines.getValue("verification").single().uppercase())
    val tree get() = lines.getValue("draft")[0] == "tree"
    val scoresTrees get() = lines.getValue("draft")[1] == "1"
    val policyKind get() = lines.getValue("policy")[0]
    val lookupTokens get() = lines.getValue("lookup").singleOrNull()?.toInt()

    val sampling
        get() = lines.getValue("sampling").let {
            Sampling(it[0].toDouble(), it[1].toInt(), it[2].toDouble(), it[3].toDouble(), it[4].toDouble())
        }

    fun world(): World {
        val (seed, tail) = lines.getValue("world")
        return World(seed.toLong(), surfaces("drafter"), surfaces("target"), tail.toInt())
    }

    fun policy(): Policy {
        val words = lines.getValue("policy")
        return if (words[0] == "fixed") FixedPolicy(words[1].toInt(), words[2].toDouble())
        else CostAwarePolicy(
            Costs(
                mapOf(256 to listOf(1, 8).associateWith { targetSeconds(it) }),
                listOf(1, 8).associateWith { drafterSeconds(it) },
            )
        )
    }

    fun ints(key: String) = lines.getValue(key).map { it.toInt() }.toIntArray()
    fun words(key: String) = lines.getValue(key)

    private fun surfaces(key: String) = lines.getValue(key).map { word ->
        if (word == "-") null else word.chunked(2).map { it.toInt(16).toByte() }.toByteArray()
    }

    override fun toString() = "answer $name"

    companion object {
        fun targetSeconds(tokens: Int) = 0.01 + 0.001 * tokens
        fun drafterSeconds(tokens: Int) = 0.001 + 0.0001 * tokens

        fun all(): List<RecordedAnswer> {
            val blocks = ArrayList<RecordedAnswer>()
            var block = HashMap<String, List<String>>()
            for (line in Fixtures.root.resolve("tests/vectors/generations.txt").readLines()) {
                val words = line.split(" ")
                when (words[0]) {
                    "#" -> Unit
                    "end" -> {
                        blocks += RecordedAnswer(block)
                        block = HashMap()
                    }
                    else -> block[words[0]] = words.drop(1)
                }
            }
            return blocks
        }
    }
}
