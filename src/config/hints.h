// What words of other trainers (Megatron-LM, torchtitan, Hugging Face, llm.c, nanoGPT) are called here.
#ifndef HINTS_H
#define HINTS_H

// The answer to a key that is none of ours, to follow "no such key; ": what to set instead, or that it is not here.
// `name` is "section.key" or a key or section alone; what precedes its last dot is not looked at. NULL: no other
// trainer's.
const char *hint_for_key(const char *name);

// Our word for a value of `key` ("schedule.name") as others spell it, or NULL.
const char *hint_for_word(const char *key, const char *word);

#endif
