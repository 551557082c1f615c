package org.omnidraft.demo.ui

import android.os.Build
import android.view.View
import android.view.WindowInsets

/** Keeps a window's content clear of the system's bars, of cut-outs and of the keyboard. */
fun View.padForSystemBars() = setOnApplyWindowInsetsListener { view, insets ->
    if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.R) {
        val kinds = WindowInsets.Type.systemBars() or WindowInsets.Type.displayCutout() or
            WindowInsets.Type.ime()
        val edges = insets.getInsets(kinds)
        view.setPadding(edges.left, edges.top, edges.right, edges.bottom)
        WindowInsets.CONSUMED
    } else {
        @Suppress("DEPRECATION")
        view.setPadding(
            insets.systemWindowInsetLeft,
            insets.systemWindowInsetTop,
            insets.systemWindowInsetRight,
            insets.systemWindowInsetBottom,
        )
        @Suppress("DEPRECATION")
        insets.consumeSystemWindowInsets()
    }
}
