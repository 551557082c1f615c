package org.omnidraft.engine.learning

import java.nio.file.Path
import org.omnidraft.engine.models.Matrix

/** A process that saves adapters of ever larger numbers until it is killed. */
object KilledSaves {
    val drafter = ModelKey("drafter", "d".repeat(64))
    val target = ModelKey("target", "e".repeat(64))

    fun adapter(number: Int): Adapter {
        fun filled(rows: Int, columns: Int) = Matrix(rows, columns, FloatArray(rows * columns) { number.toFloat() })
        val lora = mapOf("lora.0.o.A" to filled(4000, 8), "lora.0.o.B" to filled(8, 4000))
        return Adapter(AdapterMetadata(drafter = drafter, target = target, updates = number), lora)
    }

    @JvmStatic
    fun main(arguments: Array<String>) {
        val store = AdapterStore(Path.of(arguments[0]))
        var number = arguments[1].toInt()
        while (true) {
            store.save("task", adapter(++number))
            println(number)
        }
    }
}
