package org.omnidraft.demo.ui

import android.content.Context
import android.util.AttributeSet
import android.widget.ScrollView

/** A scroll view as high as its content, but no higher than half of the height that there is. */
class HalfScrollView @JvmOverloads constructor(context: Context, attributes: AttributeSet? = null) :
    ScrollView(context, attributes) {
    override fun onMeasure(widthMeasureSpec: Int, heightMeasureSpec: Int) {
        val half = MeasureSpec.getSize(heightMeasureSpec) / 2
        super.onMeasure(widthMeasureSpec, MeasureSpec.makeMeasureSpec(half, MeasureSpec.AT_MOST))
    }
}
