/* OmniDraft's core for programs in any language: which passes of a target and of a drafter to run,
 * and which tokens come of them. Whoever calls runs the models; docs/embedding.md shows how.
 *
 * Calls. All but omnidraft_version, omnidraft_last_error and those that free return a status. Where
 * it is not OMNIDRAFT_OK, nothing was written to the places that results go to, and
 * omnidraft_last_error() says what was wrong. No C++ exception crosses this interface.
 *
 * Handles. Each is made by one call and freed by one; NULL may be freed. A handle keeps alive what
 * it rests on, so they may be freed in any order.
 *
 * Memory. What is handed in is copied or used during the call only. What is handed out by pointer
 * and count stays valid until the next call on that handle other than omnidraft_last_error; an
 * empty array may be NULL.
 *
 * Threads. A handle, and all that it rests on, serves one thread at a time. Handles that share
 * nothing may be used at the same time. A callback uses no handle of the call that runs it.
 *
 * Versions. Structs whose first member is struct_size may grow at their end. Begin them with their
 * *_INIT macro. A library takes shorter ones from older programs, and longer ones from newer
 * programs as long as what it does not know is zero. */
#ifndef OMNIDRAFT_H
#define OMNIDRAFT_H

#include <stddef.h>
#include <stdint.h>

#define OMNIDRAFT_API_VERSION 1

#if defined(__GNUC__)
#define OMNIDRAFT_API __attribute__((visibility("default")))
#else
#define OMNIDRAFT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum omnidraft_status {
  OMNIDRAFT_OK = 0,
  OMNIDRAFT_INVALID_ARGUMENT = 1, /* NULL, a number outside its range, logits of another shape */
  OMNIDRAFT_INVALID_TOKEN = 2,    /* a token, or an index, outside its vocabulary or array */
  OMNIDRAFT_NOT_NUMBERS = 3,      /* logits hold NaN or +inf, or -inf alone */
  OMNIDRAFT_WRONG_ORDER = 4,      /* of the calls of a generation */
  OMNIDRAFT_DAMAGED = 5,          /* bytes that hold no whole n-gram cache */
  OMNIDRAFT_MISMATCH = 6,         /* an n-gram cache of other vocabularies or of a newer format */
  OMNIDRAFT_FILE = 7,             /* a file could not be read or written */
  OMNIDRAFT_CALLBACK = 8,         /* a callback said that it failed, or broke its contract */
  OMNIDRAFT_NO_MEMORY = 9,
  OMNIDRAFT_FAILED = 10 /* something that no other status names */
} omnidraft_status;

/* OMNIDRAFT_API_VERSION of the library. Calls are added with a new version, never changed. */
OMNIDRAFT_API uint32_t omnidraft_version(void);

/* What the last call of this thread that failed says, in UTF-8; "" before that. It stays until the
 * next such call. */
OMNIDRAFT_API const char* omnidraft_last_error(void);

typedef int32_t omnidraft_token; /* from 0 on */
#define OMNIDRAFT_NO_TOKEN (-1)

typedef struct omnidraft_text { /* bytes, which need no end mark; NULL with size 0 */
  const char* bytes;
  size_t size;
} omnidraft_text;

/* ---- Vocabularies -------------------------------------------------------------------------- */

enum omnidraft_token_kind {
  OMNIDRAFT_NORMAL = 0,  /* spells its surface */
  OMNIDRAFT_SPECIAL = 1, /* has no surface: control tokens, chat markers, unused columns */
  OMNIDRAFT_BYTE = 2     /* a byte-fallback token; another token may spell the same byte */
};

typedef struct omnidraft_vocabulary omnidraft_vocabulary;

/* One token for each column of a model's logits. surfaces: the bytes that each spells; those of
 * special tokens are ignored. pieces: the tokenizer's own strings, which only OMNIDRAFT_PAPER_RULE
 * compares; may be NULL. kinds: of enum omnidraft_token_kind; NULL: all are normal. */
OMNIDRAFT_API omnidraft_status omnidraft_vocabulary_new(const omnidraft_text* surfaces,
                                                        const omnidraft_text* pieces,
                                                        const uint8_t* kinds, size_t count,
                                                        omnidraft_vocabulary** vocabulary);
OMNIDRAFT_API void omnidraft_vocabulary_free(omnidraft_vocabulary* vocabulary);
OMNIDRAFT_API omnidraft_status omnidraft_vocabulary_size(const omnidraft_vocabulary* vocabulary,
                                                         size_t* size);

enum omnidraft_mapping_rule {
  OMNIDRAFT_BYTES_RULE = 0, /* tokens with equal surfaces stand for each other */
  OMNIDRAFT_PAPER_RULE = 1  /* tokens with equal pieces do, as in OmniDraft's paper */
};

typedef struct omnidraft_pair omnidraft_pair;

OMNIDRAFT_API omnidraft_status omnidraft_pair_new(const omnidraft_vocabulary* drafter,
                                                  const omnidraft_vocabulary* target, int32_t rule,
                                                  omnidraft_pair** pair);
OMNIDRAFT_API void omnidraft_pair_free(omnidraft_pair* pair);
/* Equal for equal vocabularies and rules: to name the file of a cache by. */
OMNIDRAFT_API omnidraft_status omnidraft_pair_fingerprint(const omnidraft_pair* pair,
                                                          uint64_t* fingerprint);
/* Draft tokens that a target token stands for directly. */
OMNIDRAFT_API omnidraft_status omnidraft_pair_direct_count(const omnidraft_pair* pair,
                                                           size_t* count);
/* The target token of a draft token, and the reverse; OMNIDRAFT_NO_TOKEN where there is none. */
OMNIDRAFT_API omnidraft_status omnidraft_pair_to_target(const omnidraft_pair* pair,
                                                        omnidraft_token draft,
                                                        omnidraft_token* target);
OMNIDRAFT_API omnidraft_status omnidraft_pair_to_draft(const omnidraft_pair* pair,
                                                       omnidraft_token target,
                                                       omnidraft_token* draft);

/* ---- The n-gram cache ---------------------------------------------------------------------- */

enum omnidraft_eviction {
  OMNIDRAFT_LRU = 0, /* the n-gram that was used longest ago goes first */
  OMNIDRAFT_LFU = 1  /* the one that was used least often */
};

typedef struct omnidraft_limits {
  size_t struct_size;
  size_t max_entries; /* n-grams */
  size_t max_bytes;   /* of memory; two bits for each token of the drafter are always taken */
  int32_t eviction;   /* of enum omnidraft_eviction */
} omnidraft_limits;
#define OMNIDRAFT_LIMITS_INIT {sizeof(omnidraft_limits), 65536, (size_t)4 << 20, OMNIDRAFT_LRU}

typedef struct omnidraft_cache omnidraft_cache;

/* An empty one. limits: NULL for those of OMNIDRAFT_LIMITS_INIT, here and below. */
OMNIDRAFT_API omnidraft_status omnidraft_cache_new(const omnidraft_pair* pair,
                                                   const omnidraft_limits* limits,
                                                   omnidraft_cache** cache);
OMNIDRAFT_API void omnidraft_cache_free(omnidraft_cache* cache);
OMNIDRAFT_API omnidraft_status omnidraft_cache_size(const omnidraft_cache* cache, size_t* ngrams);
OMNIDRAFT_API omnidraft_status omnidraft_cache_memory(const omnidraft_cache* cache, size_t* bytes);
/* Shows it draft tokens that spell a target token. inserted: 1 for a new n-gram, 0 for one that is
 * known or none of this pair; may be NULL. Not during a round of a generation that uses it. */
OMNIDRAFT_API omnidraft_status omnidraft_cache_observe(omnidraft_cache* cache,
                                                       omnidraft_token target,
                                                       const omnidraft_token* drafts, size_t count,
                                                       int32_t* inserted);
/* The n-grams with a checksum. */
OMNIDRAFT_API omnidraft_status omnidraft_cache_to_bytes(omnidraft_cache* cache,
                                                        const uint8_t** bytes, size_t* size);
OMNIDRAFT_API omnidraft_status omnidraft_cache_from_bytes(const uint8_t* bytes, size_t size,
                                                          const omnidraft_pair* pair,
                                                          const omnidraft_limits* limits,
                                                          omnidraft_cache** cache);
/* The same in a file, which is replaced as a whole. path: as the system takes it, UTF-8 here. */
OMNIDRAFT_API omnidraft_status omnidraft_cache_save(const omnidraft_cache* cache, const char* path);
OMNIDRAFT_API omnidraft_status omnidraft_cache_load(const char* path, const omnidraft_pair* pair,
                                                    const omnidraft_limits* limits,
                                                    omnidraft_cache** cache);

/* ---- What a pass costs --------------------------------------------------------------------- */

typedef struct omnidraft_curve {
  size_t band;           /* the contexts it holds for: up to 256, 1024 or 4096 (and all longer
                            ones) tokens; not used of a drafter's */
  const size_t* sizes;   /* tokens of a pass, each once, from 1 to 65536, and 1 among them */
  const double* seconds; /* that a pass over so many took */
  size_t count;
} omnidraft_curve;

typedef struct omnidraft_costs omnidraft_costs;

/* From measured passes. target: at least one curve, each of another band. */
OMNIDRAFT_API omnidraft_status omnidraft_costs_new(const omnidraft_curve* target, size_t count,
                                                   const omnidraft_curve* drafter,
                                                   omnidraft_costs** costs);
OMNIDRAFT_API void omnidraft_costs_free(omnidraft_costs* costs);
/* To keep the curves, which follow the machine: the target's bands, in ascending order; the seconds
 * of a pass over so many tokens, band 0 being the drafter's curve; whether any curve moved so far
 * that it should be kept anew (new ones did), and that this was done. */
OMNIDRAFT_API omnidraft_status omnidraft_costs_bands(omnidraft_costs* costs, const size_t** bands,
                                                     size_t* count);
OMNIDRAFT_API omnidraft_status omnidraft_costs_seconds(const omnidraft_costs* costs, size_t band,
                                                       size_t tokens, double* seconds);
OMNIDRAFT_API omnidraft_status omnidraft_costs_moved(const omnidraft_costs* costs, int32_t* moved);
OMNIDRAFT_API omnidraft_status omnidraft_costs_written(omnidraft_costs* costs);

/* ---- How much to draft --------------------------------------------------------------------- */

typedef struct omnidraft_policy omnidraft_policy;

/* So many tokens every round; of a tree the most probable ones. confidence: drafting ends early
 * where the drafter's confidence in all of a path falls below this, of 0 to 1; 0: never. */
OMNIDRAFT_API omnidraft_status omnidraft_policy_fixed(size_t tokens, double confidence,
                                                      omnidraft_policy** policy);
/* What makes most tokens per second. It learns, so keep it from answer to answer: one for each kind
 * of answers (chains or trees, seeded or not, temperature). */
OMNIDRAFT_API omnidraft_status omnidraft_policy_cost_aware(const omnidraft_costs* costs,
                                                           omnidraft_policy** policy);
OMNIDRAFT_API void omnidraft_policy_free(omnidraft_policy* policy);

typedef struct omnidraft_lookup omnidraft_lookup;

/* Finds what followed in the text before; costs no drafter. vocabulary_size: the target's;
 * max_tokens: of the text that is kept, at most, from 2 on. It is emptied when a prompt is read. */
OMNIDRAFT_API omnidraft_status omnidraft_lookup_new(size_t vocabulary_size, size_t max_tokens,
                                                    omnidraft_lookup** lookup);
OMNIDRAFT_API void omnidraft_lookup_free(omnidraft_lookup* lookup);

/* ---- What the drafter reads ---------------------------------------------------------------- */

/* Writes draft tokens whose surfaces join to `text`, as the drafter's tokenizer splits it in
 * isolation, at most `capacity`, which is text.size. Returns how many; 0 where there are none; less
 * than 0 where it failed: the call that needed it is then OMNIDRAFT_CALLBACK. */
typedef int64_t (*omnidraft_segment)(void* user, omnidraft_text text, omnidraft_token* tokens,
                                     size_t capacity);

typedef struct omnidraft_speller_options {
  size_t struct_size;
  omnidraft_segment segment;
  void* user;                  /* given to segment */
  void (*release)(void* user); /* called once, when segment is not needed any more; may be NULL */
  omnidraft_text special_text; /* what the drafter reads in place of a special token */
  /* Special tokens of the target for which the drafter has its own. */
  const omnidraft_token* special_targets;
  const omnidraft_token* special_drafts;
  size_t special_count;
} omnidraft_speller_options;
#define OMNIDRAFT_SPELLER_INIT \
  {sizeof(omnidraft_speller_options), NULL, NULL, NULL, {"\n", 1}, NULL, NULL, 0}

typedef struct omnidraft_speller omnidraft_speller;

/* segment is called at once, for special_text, and while generations read and settle. Where this
 * call fails, release is not called. */
OMNIDRAFT_API omnidraft_status omnidraft_speller_new(const omnidraft_pair* pair,
                                                     const omnidraft_speller_options* options,
                                                     omnidraft_speller** speller);
OMNIDRAFT_API void omnidraft_speller_free(omnidraft_speller* speller);

/* ---- Answers ------------------------------------------------------------------------------- */

/* Applied in this order, as Hugging Face transformers does. */
typedef struct omnidraft_sampling {
  size_t struct_size;
  double repetition_penalty; /* above 0; 1: off */
  double temperature;        /* 0: greedy decoding */
  int32_t top_k;             /* 0: off */
  double top_p;              /* 1: off */
  double min_p;              /* 0: off */
} omnidraft_sampling;
#define OMNIDRAFT_SAMPLING_INIT {sizeof(omnidraft_sampling), 1, 0, 0, 1, 0}

/* Whether they lie in their ranges; the message names what does not. */
OMNIDRAFT_API omnidraft_status omnidraft_sampling_check(const omnidraft_sampling* sampling);

enum omnidraft_verification {
  /* What is drafted stands while it is what plain decoding takes: for greedy decoding, and for
   * sampling by a seed. Trees are always verified so. */
  OMNIDRAFT_FOLLOW = 0,
  OMNIDRAFT_EXACT = 1, /* rejection sampling of chains: distributed exactly as the target */
  OMNIDRAFT_PAPER = 2  /* the rejection sampling of OmniDraft's paper, approximate */
};

typedef struct omnidraft_generation_options {
  size_t struct_size;
  size_t vocabulary_size;             /* columns of the target's logits */
  const omnidraft_sampling* sampling; /* NULL: greedy */
  int32_t verification;               /* of enum omnidraft_verification */
  uint64_t seed;                      /* of what is sampled */
  const omnidraft_token* ends;        /* end-of-text tokens: an answer ends with the first */
  size_t end_count;
  /* For speculative decoding these three, of one pair whose target has vocabulary_size tokens; for
   * plain decoding none, and nothing below. */
  omnidraft_cache* cache;
  omnidraft_speller* speller;
  omnidraft_policy* policy;
  omnidraft_lookup* lookup;     /* NULL: nothing is looked up */
  const omnidraft_token* begin; /* draft tokens that open every context (beginning of text) */
  size_t begin_count;
  int32_t tree;         /* draft trees, which the target must score; else chains */
  int32_t scores_trees; /* whether the drafter scores them, too */
  size_t max_length;    /* of the drafter's KV cache */
  /* What the drafter's KV cache holds; none where that may not be used. */
  const omnidraft_token* held;
  size_t held_count;
} omnidraft_generation_options;
#define OMNIDRAFT_GENERATION_INIT        \
  {sizeof(omnidraft_generation_options), \
   0,                                    \
   NULL,                                 \
   OMNIDRAFT_FOLLOW,                     \
   0,                                    \
   NULL,                                 \
   0,                                    \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   0,                                    \
   0,                                    \
   0,                                    \
   0,                                    \
   NULL,                                 \
   0}

/* A pass of a model. */
typedef struct omnidraft_pass {
  size_t struct_size;
  size_t held; /* tokens that its KV cache must hold before; where it holds more, it is cut */
  const omnidraft_token* tokens;
  size_t count;
  /* NULL: each token follows the one before. For a pass over nodes of a tree, of each token the
   * slot of the KV cache that it follows. */
  const int32_t* parents;
  size_t rows; /* of logits that are wanted: those of the last tokens */
} omnidraft_pass;
#define OMNIDRAFT_PASS_INIT {sizeof(omnidraft_pass), 0, NULL, 0, NULL, 0}

enum omnidraft_origin {
  OMNIDRAFT_DIRECT = 0,    /* drafted and accepted, one draft token */
  OMNIDRAFT_MERGED = 1,    /* drafted and accepted, an n-gram of the cache */
  OMNIDRAFT_CORRECTED = 2, /* the target's choice where the proposal was rejected */
  OMNIDRAFT_FREE = 3,      /* the target's own next token after all that was proposed */
  OMNIDRAFT_LOOKED_UP = 4  /* looked up and accepted */
};

typedef struct omnidraft_verdict {
  size_t struct_size;
  const omnidraft_token* tokens; /* of this round, at least one */
  const uint8_t* origins;        /* of each, of enum omnidraft_origin */
  size_t count;
  size_t proposed;        /* target tokens that were scored */
  size_t accepted;        /* of those, the ones that stand: count is accepted + 1 */
  size_t accepted_drafts; /* draft tokens that spell them */
  size_t merged;          /* n-grams among the proposed */
  size_t merged_accepted;
  int32_t ended; /* whether the last token is one of the ends */
} omnidraft_verdict;
#define OMNIDRAFT_VERDICT_INIT {sizeof(omnidraft_verdict), NULL, NULL, 0, 0, 0, 0, 0, 0, 0}

enum omnidraft_kept_kind {
  OMNIDRAFT_KEEP_ALL = 0,    /* what the KV cache holds stays */
  OMNIDRAFT_KEEP_LENGTH = 1, /* its first `length` tokens stay */
  OMNIDRAFT_KEEP_PATH = 2    /* of the tree the nodes in these slots stay, behind the text */
};

typedef struct omnidraft_kept {
  int32_t kind;
  size_t length; /* tokens that it holds then; not of OMNIDRAFT_KEEP_ALL */
  const int32_t* path;
  size_t count;
} omnidraft_kept;

typedef struct omnidraft_settled {
  size_t struct_size;
  omnidraft_kept target; /* what to leave in the KV caches */
  omnidraft_kept drafter;
  size_t draft_tokens; /* that were drawn; of a tree those that spell what was proposed */
  size_t inserted;     /* n-grams, into the cache */
} omnidraft_settled;
#define OMNIDRAFT_SETTLED_INIT {sizeof(omnidraft_settled), {0, 0, NULL, 0}, {0, 0, NULL, 0}, 0, 0}

/* One path of a round, for what learns from it: the drafted tokens that the target took, and on by
 * the drafter's most probable ones where it left the draft. A token that the target took further
 * on, behind one that was looked up, is shown by itself, as a round without a draft. */
typedef struct omnidraft_shown {
  size_t struct_size;
  size_t context;                /* draft tokens of the context before the draft */
  const omnidraft_token* tokens; /* the drafted target tokens */
  const uint32_t* counts;        /* how many draft tokens spell each */
  size_t count;
  const omnidraft_token* drafts; /* that spell them, and those of an unfinished one */
  size_t draft_count;
  size_t accepted;      /* of the tokens, the first ones that stood */
  omnidraft_token last; /* that the target took after those */
  const uint32_t* rows; /* count + 1 of the target's logits: row i follows the i-th token */
  size_t row_count;
  const uint32_t* draft_nodes; /* of a tree, those on the path that the drafter ran on */
  size_t node_count;
} omnidraft_shown;
#define OMNIDRAFT_SHOWN_INIT \
  {sizeof(omnidraft_shown), 0, NULL, NULL, 0, NULL, 0, 0, OMNIDRAFT_NO_TOKEN, NULL, 0, NULL, 0}

typedef struct omnidraft_generation omnidraft_generation;

OMNIDRAFT_API omnidraft_status omnidraft_generation_new(const omnidraft_generation_options* options,
                                                        omnidraft_generation** generation);
OMNIDRAFT_API void omnidraft_generation_free(omnidraft_generation* generation);

/* The prompt, once, before the first round. The target is to read all but its last token. inserted:
 * n-grams; may be NULL. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_read(omnidraft_generation* generation,
                                                         const omnidraft_token* prompt,
                                                         size_t count, size_t* inserted);

/* Begins a round. room: tokens that are still wanted, less the one that every round adds; length,
 * max_length: of the target's KV cache. drafts: 1: the drafter is to run. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_begin(omnidraft_generation* generation,
                                                          size_t room, size_t length,
                                                          size_t max_length, int32_t* drafts);
/* The drafter's pass. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_pass(const omnidraft_generation* generation,
                                                         omnidraft_pass* pass);
/* Of a tree, the numbers of the draft nodes whose rows the pass gives. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_pass_nodes(
    const omnidraft_generation* generation, const uint32_t** nodes, size_t* count);
/* It gave logits, rows after one another, `count` numbers in all, and took so many seconds. Where
 * they are not numbers, call omnidraft_generation_fail. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_drafted(omnidraft_generation* generation,
                                                            const float* logits, size_t count,
                                                            double seconds);
/* Of a chain: the largest probability of a token at the last step; whether that drew one; and how
 * likely it is to be accepted, of 0 to 1, where that is better known. */
OMNIDRAFT_API omnidraft_status
omnidraft_generation_confidence(const omnidraft_generation* generation, double* confidence);
OMNIDRAFT_API omnidraft_status omnidraft_generation_drew(const omnidraft_generation* generation,
                                                         int32_t* drew);
OMNIDRAFT_API omnidraft_status omnidraft_generation_score_as(omnidraft_generation* generation,
                                                             double score);
/* more: 1: the drafter is to run again. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_draft_on(omnidraft_generation* generation,
                                                             int32_t* more);
/* At any time: the drafter cannot go on. What was drafted so far is proposed, and no further round
 * drafts. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_fail(omnidraft_generation* generation);
/* drafts: 1 while rounds may draft. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_drafts(const omnidraft_generation* generation,
                                                           int32_t* drafts);
/* The target's pass. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_score(omnidraft_generation* generation,
                                                          omnidraft_pass* pass);
/* It gave logits. Where they are not numbers, or not as many as wanted, it may be called again. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_scored(omnidraft_generation* generation,
                                                           const float* logits, size_t count,
                                                           omnidraft_verdict* verdict);
/* The answer ends with token `end` of the verdict, a stop text say: cuts what stands behind it. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_end_at(omnidraft_generation* generation,
                                                           size_t end, omnidraft_verdict* verdict);
OMNIDRAFT_API omnidraft_status omnidraft_generation_verdict(const omnidraft_generation* generation,
                                                            omnidraft_verdict* verdict);
/* Of each token of the verdict, the row of logits that it was taken from. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_rows(omnidraft_generation* generation,
                                                         const uint32_t** rows, size_t* count);
/* What was proposed; of each token the one that it follows, -1 for the text. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_proposed(omnidraft_generation* generation,
                                                             const omnidraft_token** tokens,
                                                             const int32_t** parents,
                                                             size_t* count);
/* Ends the round and learns from it. Seconds: of the target's pass, and of
 * omnidraft_generation_scored. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_settle(omnidraft_generation* generation,
                                                           double target_seconds,
                                                           double other_seconds,
                                                           omnidraft_settled* settled);
/* What the round that was settled last has to show, before the next begins: how many paths, and
 * one of them. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_show(omnidraft_generation* generation,
                                                         size_t* paths);
OMNIDRAFT_API omnidraft_status omnidraft_generation_shown(const omnidraft_generation* generation,
                                                          size_t path, omnidraft_shown* shown);
/* The draft tokens that stand for the text. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_context(const omnidraft_generation* generation,
                                                            const omnidraft_token** tokens,
                                                            size_t* count);
/* Tokens of the answer so far. */
OMNIDRAFT_API omnidraft_status omnidraft_generation_length(const omnidraft_generation* generation,
                                                           uint64_t* length);

#ifdef __cplusplus
}
#endif

#endif
