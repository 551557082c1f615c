"""Between the target's tokens and the drafter's: spelling, and the context the drafter sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from omnidraft._native import NgramCache, VocabularyPair


class Speller:
    """Draft tokens for a target token, aligned by bytes.

    Args:
        pair: the direct mapping.
        surface: surface bytes of a target token; None for a special token.
        segment: draft tokens whose surfaces join to the given bytes; None when there are none.
        special_text: what the drafter sees for the target's special tokens. They have no surface,
            are never proposed, and may come at any time.
        specials: target's special token → the drafter's own special token for it, where there is
            one.
    """

    def __init__(
        self,
        pair: VocabularyPair,
        surface: Callable[[int], bytes | None],
        segment: Callable[[bytes], Sequence[int] | None],
        special_text: str = "\n",
        specials: Mapping[int, int] | None = None,
    ) -> None:
        self._pair = pair
        self._surface = surface
        self._segment = segment
        self._special = tuple(segment(special_text.encode()) or ())
        self._known: dict[int, tuple[int, ...]] = {
            target: (draft,) for target, draft in (specials or {}).items()
        }

    def spell(self, token: int) -> tuple[int, ...]:
        """Draft tokens whose bytes are those of ``token``.

        Empty when the drafter cannot spell them: it then does not see the token.
        """
        spelled = self._known.get(token)
        if spelled is None:
            spelled = self._known[token] = self._spell(token)
        return spelled

    def _spell(self, token: int) -> tuple[int, ...]:
        surface = self._surface(token)
        if surface is None:
            return self._special
        direct = self._pair.to_draft(token)
        if direct >= 0:
            return (direct,)
        return tuple(self._segment(surface) or ())


class DraftContext:
    """The draft tokens that stand for the target's sequence, by reverse translation.

    They are aligned by bytes, token by token. Text is never decoded and encoded again, so a
    character that is split over tokens, a leading space or a special token cannot move the boundary
    at which the next draft begins.
    """

    def __init__(self, speller: Speller, cache: NgramCache, begin: Sequence[int] = ()) -> None:
        self._speller = speller
        self._cache = cache
        self.tokens: list[int] = list(begin)

    def extend(
        self,
        targets: Sequence[int],
        spellings: Sequence[Sequence[int]] = (),
        *,
        said: bool = False,
    ) -> int:
        """Append target tokens; observe those that are n-grams.

        Args:
            targets: target tokens, in order.
            said: whether the target said them. Tokens of a prompt it did not say.
            spellings: draft tokens of the first ``len(spellings)`` of them, as they were drafted;
                none for one that was proposed without drafting.

        Returns:
            How many n-grams were inserted into the cache.
        """
        inserted = 0
        for i, target in enumerate(targets):
            drafted = spellings[i] if i < len(spellings) else ()
            drafts = drafted or self._speller.spell(target)
            self.tokens.extend(drafts)
            if len(drafts) > 1:
                inserted += self._cache.observe(target, list(drafts))
                if said:
                    self._cache.judge(list(drafts), True)
        return inserted

    def refuse(self, proposed: Sequence[int], said: int) -> None:
        """Take in what the target said where an n-gram was proposed.

        Args:
            proposed: draft tokens of the n-gram.
            said: the target token in its place.
        """
        spelled = list(self._speller.spell(said))
        if 0 < len(spelled) < len(proposed) and spelled == list(proposed[: len(spelled)]):
            self._cache.judge(list(proposed), False)
