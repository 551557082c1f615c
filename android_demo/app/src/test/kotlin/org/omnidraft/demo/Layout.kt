package org.omnidraft.demo

import android.app.Activity
import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import org.junit.Assert.assertTrue

/** Lays an activity's views out on the screen's size. */
fun layOut(activity: Activity) {
    val metrics = activity.resources.displayMetrics
    val root = activity.window.decorView
    root.measure(
        View.MeasureSpec.makeMeasureSpec(metrics.widthPixels, View.MeasureSpec.EXACTLY),
        View.MeasureSpec.makeMeasureSpec(metrics.heightPixels, View.MeasureSpec.EXACTLY),
    )
    root.layout(0, 0, metrics.widthPixels, metrics.heightPixels)
}

/** Checks that what can be clicked is 48 dp large at least, and says what it is. */
fun checkTouchable(view: View) {
    if (view.visibility != View.VISIBLE) return
    if (view.isClickable && view.isFocusable) {
        val density = view.resources.displayMetrics.density
        val name = view.toString()
        assertTrue("$name is low: ${view.height}", view.height >= 48 * density)
        assertTrue("$name is narrow: ${view.width}", view.width >= 48 * density)
        val says = view.contentDescription ?: (view as? TextView)?.run { text.ifEmpty { hint } }
        assertTrue("$name says nothing", !says.isNullOrBlank() || view is ViewGroup)
    }
    if (view is ViewGroup) (0 until view.childCount).forEach { checkTouchable(view.getChildAt(it)) }
}
