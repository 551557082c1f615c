package org.omnidraft.engine.models

/**
 * Nodes in the slots behind a chain: see [CausalModel.forwardTree].
 *
 * A node's path is the slots of its ancestors within the tree, and its own: ascending, as a node
 * follows another one that was there before it.
 *
 * @param chain slots before those of the tree, whose tokens every node sees.
 */
internal class TokenTree(val chain: Int) {
    private val held = ArrayList<IntArray>()

    /**
     * Paths of [count] more nodes, in the next slots, by the slots of their [parents].
     *
     * @throws IllegalArgumentException a parent is neither the chain's last slot nor an earlier
     *   node's; or there are not [count].
     */
    fun paths(parents: IntArray, count: Int): List<IntArray> {
        require(parents.size == count) {
            "$count nodes with ${parents.size} parents: each must have one"
        }
        val paths = ArrayList(held)
        val first = chain + held.size
        parents.forEachIndexed { index, parent ->
            val slot = first + index
            require(parent in chain - 1 until slot) {
                "the node in slot $slot follows slot $parent: it must follow the end of the text " +
                    "(slot ${chain - 1}) or an earlier node of the tree"
            }
            val above = if (parent >= chain) paths[parent - chain] else IntArray(0)
            paths += above + slot
        }
        return paths.subList(held.size, paths.size)
    }

    /** Add the nodes that [paths] gave. */
    fun grow(paths: List<IntArray>) {
        held += paths
    }

    /**
     * From which slots to which ones a path moves so that it lies behind the chain.
     *
     * Both ascend, so one may be moved after the other. Those that lie right are left out.
     *
     * @throws IllegalArgumentException it is no path from the chain downwards.
     */
    fun moves(path: IntArray): List<Pair<Int, Int>> {
        if (path.isNotEmpty()) {
            val node = held.getOrNull(path.last() - chain)
            require(node != null && node.contentEquals(path)) {
                "${path.contentToString().take(200)} is no path of the tree from its root downwards"
            }
        }
        return path.mapIndexed { i, slot -> slot to chain + i }.filter { (from, to) -> from != to }
    }

    /** The error of what cannot be done while the tree is held. */
    fun refuse(what: String) = IllegalStateException(
        "$what while a tree is held: call keep() with the path that is accepted, or truncate() to " +
            "at most the $chain tokens before the tree"
    )
}
