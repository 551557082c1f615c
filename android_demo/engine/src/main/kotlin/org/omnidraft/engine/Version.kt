package org.omnidraft.engine

/** The engine's version, which is that of OmniDraft. */
const val VERSION = "0.1.0"
