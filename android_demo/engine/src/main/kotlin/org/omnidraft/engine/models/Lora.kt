package org.omnidraft.engine.models

import org.omnidraft.engine.OmniDraftException

/**
 * A float32 matrix.
 *
 * @param values row by row: `rows * columns` of them. Not copied.
 */
class Matrix(val rows: Int, val columns: Int, val values: FloatArray) {
    init {
        require(rows >= 0 && columns >= 0 && values.size == rows * columns) {
            "${values.size} values for a matrix of $rows × $columns"
        }
    }

    /** Zeros of a shape. */
    constructor(rows: Int, columns: Int) : this(rows, columns, FloatArray(rows * columns))

    /** The same numbers in an array of their own. */
    fun copy() = Matrix(rows, columns, values.copyOf())

    override fun equals(other: Any?) =
        other is Matrix && rows == other.rows && columns == other.columns &&
            values.contentEquals(other.values)

    override fun hashCode() = 31 * (31 * rows + columns) + values.contentHashCode()

    override fun toString() = "float32 [$rows, $columns]"
}

/**
 * Factors by the names of a drafter's LoRA inputs: `lora.{layer}.{linear}.A` `[in, rank]` and
 * `lora.{layer}.{linear}.B` `[rank, out]`. A linear's output grows by (x A) B.
 */
typealias LoraWeights = Map<String, Matrix>

/**
 * For every LoRA input among a graph's inputs the size that is not the rank.
 *
 * @param shapes by name, of A `[in, rank]`, of B `[rank, out]`. Other inputs are left out.
 */
internal fun sizesBesideRank(shapes: Map<String, List<Long>>): Map<String, Int> =
    shapes.filterKeys { it.startsWith("lora.") }
        .mapValues { (name, shape) -> shape[if (name.endsWith(".A")) 0 else 1].toInt() }

/**
 * Refuse an adapter that does not fit a model.
 *
 * @param adapter may leave out linears, which then stay as they are.
 * @param sizes see [sizesBesideRank].
 * @throws OmniDraftException a name is unknown, an A or B lacks its other half, or a shape is wrong.
 */
internal fun checkAdapter(adapter: LoraWeights, sizes: Map<String, Int>) {
    (adapter.keys - sizes.keys).minOrNull()?.let { unknown ->
        throw OmniDraftException(
            if (sizes.isEmpty()) {
                "This drafter has no LoRA inputs. Export it again with --lora-rank from 1."
            } else {
                "The adapter does not fit this drafter, which has no input $unknown. " +
                    "Use an adapter that was made for it."
            }
        )
    }
    for ((name, matrix) in adapter) {
        val isA = name.endsWith(".A")
        val other = adapter[name.dropLast(1) + if (isA) "B" else "A"]
            ?: throw OmniDraftException("The adapter has $name without its other half.")
        val rank = if (isA) other.rows else other.columns
        val size = sizes.getValue(name)
        val fits = if (isA) matrix.rows == size && matrix.columns == rank
        else matrix.rows == rank && matrix.columns == size
        if (!fits) {
            val expected = if (isA) "[$size, $rank]" else "[$rank, $size]"
            throw OmniDraftException(
                "The adapter does not fit this drafter: $name is $matrix, float32 $expected expected."
            )
        }
    }
}
