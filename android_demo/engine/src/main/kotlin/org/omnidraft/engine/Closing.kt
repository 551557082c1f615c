package org.omnidraft.engine

/** Close all, in order, also where some cannot be closed well: the first error is thrown then. */
internal fun closeAll(parts: Iterable<AutoCloseable>) {
    var failure: Throwable? = null
    for (part in parts) {
        try {
            part.close()
        } catch (error: Throwable) {
            failure?.addSuppressed(error) ?: run { failure = error }
        }
    }
    failure?.let { throw it }
}
