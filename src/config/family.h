// The properties of a model family apart from its layers: the keys it accepts, how its FLOPs are counted, and its names
// at Hugging Face. Each family is one row of `families`; its layers are in train_NAME.cu.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct ModelConfig;

// One number of config.json and the key of our section `model` that it corresponds to. The key's row of the schema has
// its type.
typedef struct FamilyNumber {
    const char *key;   // "model.hidden"
    const char *word;  // "hidden_size"
    const char *unit;  // key of the number in whose units config.json counts; NULL: in ones
    bool again;        // true: another row has the same word, which config.json contains once
    double absent;     // value if the file lacks the word; negative: the file must have it
    const char *times; // word of another number; `absent` is multiplied by that number; NULL: by 1
    unsigned scalings; // numbers of rope_scaling: a bit for each RopeScaling that has it
} FamilyNumber;

// The supported values of one key of config.json. A missing key or null is accepted.
typedef struct FamilyDemand {
    const char *word;
    const char *allowed[2]; // a text, a number, or "true" and "false" for the booleans
    const char *refusal;    // "hidden_act is not silu"
} FamilyDemand;

// An architecture of the transformers library that a family implements.
typedef struct FamilyForm {
    const char *model_type, *architecture;
    bool qkv_bias, qk_norm;      // values that these keys of section `model` must have
    bool any;                    // config.json has these keys, so they may have any value
    int64_t head_dim;            // value if the file lacks head_dim; 0: hidden / heads
    const char *constants;       // members of config.json that are the same for all its models
    bool latent;                 // latent attention
    int router;                  // RouterScore; this and the following fields apply to mixtures of experts
    const FamilyNumber *experts; // numbers of a mixture of experts, terminated by .key = NULL; NULL: dense models
    const char *routed;          // prefix of the names of router and experts in a layer
    const char *matrix[3];       // names of an expert's gate, up and down
} FamilyForm;

typedef struct Family {
    bool rotary;                 // true: positions rotate q and k, and head_dim is even; false: learned positions
    bool grouped;                // kv_heads may be fewer than heads
    bool gated;                  // true: the MLP is SwiGLU with three matrices; false: it has two matrices
    bool biased;                 // every product of a layer has a bias
    bool tied;                   // value of model.tie_embeddings auto, and of a config.json without tie_word_embeddings
    const FamilyForm *forms;     // terminated by .model_type = NULL
    const FamilyNumber *numbers; // terminated by .key = NULL
    const FamilyDemand *demands; // terminated by .word = NULL
} Family;

// model.family is the index of a row. family_words: the values of that key in the same order, then NULL.
extern const Family families[];
extern const char *const family_words[];

// Returns the index of a family's word, -1 if it is unknown.
int family_find(const char *word);

// Returns the first architecture that matches a model; checkpoints use its names. If no architecture matches, returns
// the last one that agrees with the model on having experts.
const FamilyForm *family_form(const struct ModelConfig *model);

__END_DECLS
