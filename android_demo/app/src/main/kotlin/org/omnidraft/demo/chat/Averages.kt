package org.omnidraft.demo.chat

/** At most [most] means of groups of neighbours, all groups but the last of the same size. */
fun averages(values: List<Double>, most: Int): List<Double> {
    if (most < 1) return emptyList()
    val size = maxOf(1, (values.size + most - 1) / most)
    return values.chunked(size) { it.average() }
}
