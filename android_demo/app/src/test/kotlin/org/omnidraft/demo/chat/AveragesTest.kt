package org.omnidraft.demo.chat

import kotlin.random.Random
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import org.junit.jupiter.api.RepeatedTest
import org.junit.jupiter.api.RepetitionInfo
import org.junit.jupiter.api.Test

class AveragesTest {
    @Test
    fun `few values are shown as they are`() {
        assertEquals(listOf(0.0, 1.0, 0.5), averages(listOf(0.0, 1.0, 0.5), 10))
    }

    @Test
    fun `no room and no values give nothing`() {
        assertEquals(emptyList(), averages(listOf(1.0), 0))
        assertEquals(emptyList(), averages(emptyList(), 5))
    }

    @RepeatedTest(50)
    fun `groups are few, in order, and lose no value`(repetition: RepetitionInfo) {
        val random = Random(repetition.currentRepetition)
        val values = List(random.nextInt(1, 200)) { random.nextDouble() }
        val most = random.nextInt(1, 60)
        val means = averages(values, most)
        assertTrue(means.size <= most)
        val size = (values.size + most - 1) / most
        val sums = means.mapIndexed { i, mean -> mean * minOf(size, values.size - i * size) }
        assertEquals(values.sum(), sums.sum(), 1e-9)
        assertTrue(means.all { it in 0.0..1.0 })
    }
}
