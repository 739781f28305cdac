// What words of other trainers (Megatron-LM, torchtitan, Hugging Face, llm.c, nanoGPT) are called here.
#ifndef HINTS_H
#define HINTS_H

// Returns the answer to a key that is none of ours, to follow "no such key; ": what to set instead, or that it does not
// exist here. `name` is "section.key", or a key or section alone; only what follows its last dot is looked up. NULL: no
// other trainer has such a key.
const char *hint_for_key(const char *name);

// Returns our word for a value of `key` ("schedule.name") as others spell it, or NULL.
const char *hint_for_word(const char *key, const char *word);

#endif
