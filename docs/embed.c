/* A made-up target and drafter, and OmniDraft between them: see embedding.md. */
#include <stdio.h>
#include <string.h>
#include "omnidraft.h"
#define CHECK(call) if ((call) != OMNIDRAFT_OK) return puts(omnidraft_last_error()), 1
enum { ROOM = 64 };
static int32_t target_kv[ROOM], drafter_kv[ROOM]; /* their vocabularies have 4 and 2 tokens */

static const float* run(int32_t* kv, size_t width, const omnidraft_pass* pass) {
  static float rows[ROOM * 4]; /* of logits, for the last pass->rows tokens */
  memcpy(kv + pass->held, pass->tokens, pass->count * sizeof *kv); /* what it held behind goes */
  for (size_t i = 0, n = pass->held + pass->count - pass->rows; i < pass->rows; ++i, ++n)
    for (size_t t = 0; t < width; ++t) rows[i * width + t] = (kv[n] * 20 + n * 4 + t * 4 + 4) % 13;
  return rows;
}
static int64_t segment(void* user, omnidraft_text text, omnidraft_token* tokens, size_t capacity) {
  (void)user; /* the drafter's tokenizer: here each byte is a token */
  for (size_t i = 0; i < capacity; ++i) tokens[i] = text.bytes[i] == 'b';
  return (int64_t)capacity;
}
int main(void) {
  const omnidraft_text texts[4] = {{"a", 1}, {"b", 1}, {"ab", 2}, {NULL, 0}};
  const omnidraft_token prompt[] = {0, 2, 1}, end = 3;
  omnidraft_vocabulary *target, *drafter;
  omnidraft_pair* pair;
  omnidraft_generation* g;
  omnidraft_speller_options spelling = OMNIDRAFT_SPELLER_INIT;
  omnidraft_generation_options options = OMNIDRAFT_GENERATION_INIT;
  omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
  omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
  omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
  CHECK(omnidraft_vocabulary_new(texts, NULL, NULL, 4, &target));
  CHECK(omnidraft_vocabulary_new(texts, NULL, NULL, 2, &drafter));
  CHECK(omnidraft_pair_new(drafter, target, OMNIDRAFT_BYTES_RULE, &pair));
  CHECK(omnidraft_cache_new(pair, NULL, &options.cache));
  CHECK(omnidraft_policy_fixed(3, 0, &options.policy));
  spelling.segment = segment;
  CHECK(omnidraft_speller_new(pair, &spelling, &options.speller));
  options.vocabulary_size = 4, options.max_length = ROOM;
  options.ends = &end, options.end_count = 1;
  CHECK(omnidraft_generation_new(&options, &g));
  CHECK(omnidraft_generation_read(g, prompt, 3, NULL));
  memcpy(target_kv, prompt, (settled.target.length = 2) * sizeof *prompt); /* all but the last */
  for (int32_t more; !verdict.ended && settled.target.length < ROOM;) {
    CHECK(omnidraft_generation_begin(g, ROOM, settled.target.length, ROOM, &more));
    while (more) {
      CHECK(omnidraft_generation_pass(g, &pass));
      CHECK(omnidraft_generation_drafted(g, run(drafter_kv, 2, &pass), 2 * pass.rows, 0));
      CHECK(omnidraft_generation_draft_on(g, &more));
    }
    CHECK(omnidraft_generation_score(g, &pass));
    CHECK(omnidraft_generation_scored(g, run(target_kv, 4, &pass), 4 * pass.rows, &verdict));
    for (size_t i = 0; i < verdict.count; ++i) printf("%d ", (int)verdict.tokens[i]);
    CHECK(omnidraft_generation_settle(g, 0, 0, &settled));
  }
  omnidraft_generation_free(g), omnidraft_speller_free(options.speller); /* in any order */
  omnidraft_policy_free(options.policy), omnidraft_cache_free(options.cache);
  omnidraft_pair_free(pair), omnidraft_vocabulary_free(target), omnidraft_vocabulary_free(drafter);
  return 0;
}
