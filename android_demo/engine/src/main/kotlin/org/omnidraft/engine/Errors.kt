package org.omnidraft.engine

/** An error that a user can act on. The message says what was wrong and what to do. */
open class OmniDraftException(message: String, cause: Throwable? = null) :
    Exception(message, cause)

/** A prompt or a generation does not fit the model's context. */
class ContextOverflowException(message: String) : OmniDraftException(message)

/** No model, bundle or adapter is there. */
class ModelNotFoundException(message: String, cause: Throwable? = null) :
    OmniDraftException(message, cause)

/** A file is truncated, of another format, or fails its checksum. */
class DamagedFileException(message: String, cause: Throwable? = null) :
    OmniDraftException(message, cause)

/** What to throw where a native library cannot be loaded, as one for another kind of processor. */
internal fun cannotLoad(library: String, error: Throwable): OmniDraftException {
    val reason = generateSequence(error) { it.cause }.last().message.orEmpty().trimEnd('.')
    return OmniDraftException(
        "$library cannot be loaded: $reason. Install what was built for this device's kind of " +
            "processor (${System.getProperty("os.arch")}).",
        error,
    )
}

/** There is less memory than a model takes. */
class NotEnoughMemoryException(message: String, cause: Throwable? = null) :
    OmniDraftException(message, cause)

/** What to throw in the place of an error that no caller is expected to catch. */
internal fun inWords(error: Throwable): Throwable =
    if (error !is OutOfMemoryError) error
    else NotEnoughMemoryException(
        "The models need more memory than there is (${error.message}). End other programs, or take a " +
            "shorter context or smaller models.",
        error,
    )
