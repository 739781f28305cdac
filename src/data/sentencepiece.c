#include "sentencepiece.h"
#include "base/alloc.h"

#include "base/files.h"
#include "base/json.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 256 << 20, MOST_PIECES = 1 << 24 };
static const char BLANK[] = "\xE2\x96\x81"; // U+2581, what stands for a blank in a piece
enum { BLANK_BYTES = 3 };

// The numbers are the file's.
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };
enum { MODEL_UNIGRAM = 1, MODEL_BPE };

typedef struct Piece {
    const char *text; // into the file
    int64_t length;
    float score;
    int type;
} Piece;

struct SentencePiece {
    unsigned char *file;
    Piece *pieces;
    int64_t count, capacity;
    int32_t *table; // pieces that text can match, by hash; -1: empty
    int64_t table_mask, longest;
    int model_type;
    bool dummy_prefix, extra_blanks_go, escapes_blanks, blank_behind, normalizes, has_user;
    int64_t unknown, end;
    int32_t bytes[256]; // -1: none
    bool byte_fallback; // there are all of them
    float least, most;  // scores of normal pieces
};

// ---------------------------------------------------------------- the protocol buffer

typedef struct Wire {
    const unsigned char *at, *end;
    bool broken;
} Wire;

typedef struct Field {
    int number, type;
    uint64_t value;
    Wire inside; // type 2
} Field;

static uint64_t varint_(Wire *wire) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
        unsigned char byte = *wire->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return value;
    }
    wire->broken = true;
    return 0;
}

static uint64_t fixed_(Wire *wire, int bytes) {
    uint64_t value = 0;
    if (wire->end - wire->at < bytes) wire->broken = true;
    for (int i = 0; !wire->broken && i < bytes; i++) value |= (uint64_t)*wire->at++ << (8 * i);
    return value;
}

static bool sentencepiece_next_(Wire *wire, Field *field) {
    if (wire->broken || wire->at >= wire->end) return false;
    uint64_t key = varint_(wire);
    field->number = (int)(key >> 3 & 0x1FFFFFFF);
    field->type = (int)(key & 7);
    if (field->type == 0) {
        field->value = varint_(wire);
    } else if (field->type == 1 || field->type == 5) {
        field->value = fixed_(wire, field->type == 1 ? 8 : 4);
    } else if (field->type == 2) {
        uint64_t length = varint_(wire);
        if (length > (uint64_t)(wire->end - wire->at)) wire->broken = true;
        if (wire->broken) return false;
        field->inside = (Wire){wire->at, wire->at + length, false};
        wire->at += length;
    } else {
        wire->broken = true;
    }
    return !wire->broken;
}

static int read_piece_(SentencePiece *model, Wire wire) {
    if (model->count == model->capacity) {
        int64_t capacity = model->capacity == 0 ? 1024 : 2 * model->capacity;
        Piece *pieces = capacity > MOST_PIECES ? NULL : xrealloc(model->pieces, (size_t)capacity * sizeof *pieces);
        if (pieces == NULL) return -1;
        model->pieces = pieces;
        model->capacity = capacity;
    }
    Piece *piece = &model->pieces[model->count++];
    *piece = (Piece){"", 0, 0.0f, PIECE_NORMAL};
    for (Field field; sentencepiece_next_(&wire, &field);) {
        if (field.number == 1 && field.type == 2) {
            piece->text = (const char *)field.inside.at;
            piece->length = field.inside.end - field.inside.at;
        } else if (field.number == 2 && field.type == 5) {
            uint32_t bits = (uint32_t)field.value;
            memcpy(&piece->score, &bits, sizeof bits);
        } else if (field.number == 3 && field.type == 0) {
            piece->type = (int)field.value;
        }
    }
    return wire.broken ? -1 : 0;
}

static void read_trainer_(SentencePiece *model, Wire *wire) {
    for (Field field; sentencepiece_next_(wire, &field);) {
        if (field.type != 0) continue;
        if (field.number == 3) model->model_type = (int)field.value;
        if (field.number == 24) model->blank_behind = field.value != 0;
    }
}

static void read_normalizer_(SentencePiece *model, Wire *wire) {
    for (Field field; sentencepiece_next_(wire, &field);) {
        if (field.number == 2 && field.type == 2) model->normalizes = field.inside.end > field.inside.at;
        if (field.type != 0) continue;
        if (field.number == 3) model->dummy_prefix = field.value != 0;
        if (field.number == 4) model->extra_blanks_go = field.value != 0;
        if (field.number == 5) model->escapes_blanks = field.value != 0;
    }
}

static int sentencepiece_read_model_(SentencePiece *model, int64_t bytes) {
    Wire wire = {model->file, model->file + bytes, false};
    for (Field field; sentencepiece_next_(&wire, &field);) {
        if (field.type != 2) continue;
        if (field.number == 1 && read_piece_(model, field.inside) != 0) return -1;
        if (field.number == 2) read_trainer_(model, &field.inside);
        if (field.number == 3) read_normalizer_(model, &field.inside);
        if (field.inside.broken) return -1;
    }
    return wire.broken || model->count == 0 ? -1 : 0;
}

// ---------------------------------------------------------------- looking up pieces

// FNV-1a.
static uint64_t hash_(const char *text, int64_t length) {
    uint64_t hash = 0xCBF29CE484222325;
    for (int64_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3;
    return hash ^ hash >> 29;
}

// Where the piece stands in the table, or the empty place where it would.
static int64_t sentencepiece_place_(const SentencePiece *model, const char *text, int64_t length) {
    int64_t at = (int64_t)(hash_(text, length) & (uint64_t)model->table_mask);
    for (; model->table[at] >= 0; at = (at + 1) & model->table_mask) {
        const Piece *piece = &model->pieces[model->table[at]];
        if (piece->length == length && memcmp(piece->text, text, (size_t)length) == 0) break;
    }
    return at;
}

static int32_t sentencepiece_find_(const SentencePiece *model, const char *text, int64_t length) {
    return length > model->longest ? -1 : model->table[sentencepiece_place_(model, text, length)];
}

static void index_piece_(SentencePiece *model, int64_t id) {
    const Piece *piece = &model->pieces[id];
    unsigned byte;
    char text[8];
    snprintf(text, sizeof text, "%.*s", (int)(piece->length < 7 ? piece->length : 7), piece->text);
    if (piece->type == PIECE_UNKNOWN) model->unknown = id;
    if (piece->type == PIECE_CONTROL && piece->length == 4 && memcmp(piece->text, "</s>", 4) == 0) model->end = id;
    bool is_byte = piece->type == PIECE_BYTE && sscanf(text, "<0x%2X>", &byte) == 1;
    if (is_byte && byte < 256) model->bytes[byte] = (int32_t)id; // "-1" is a number to sscanf, too
    if (piece->type == PIECE_NORMAL) {
        model->least = piece->score < model->least ? piece->score : model->least;
        model->most = piece->score > model->most ? piece->score : model->most;
    }
    if ((piece->type != PIECE_NORMAL && piece->type != PIECE_USER) || piece->length == 0) return;
    model->has_user = model->has_user || piece->type == PIECE_USER;
    if (piece->length > model->longest) model->longest = piece->length;
    model->table[sentencepiece_place_(model, piece->text, piece->length)] = (int32_t)id;
}

static int index_(SentencePiece *model) {
    int64_t size = 16;
    while (size < 2 * model->count) size *= 2;
    model->table = xmalloc((size_t)size * sizeof *model->table);
    memset(model->table, 0xFF, (size_t)size * sizeof *model->table);
    memset(model->bytes, 0xFF, sizeof model->bytes);
    model->table_mask = size - 1;
    model->unknown = model->end = -1;
    model->least = FLT_MAX;
    model->most = -FLT_MAX;
    for (int64_t i = 0; i < model->count; i++) index_piece_(model, i);
    model->byte_fallback = true;
    for (int i = 0; i < 256; i++) model->byte_fallback = model->byte_fallback && model->bytes[i] >= 0;
    return 0;
}

// ---------------------------------------------------------------- opening

// Byte fallback needs all of them; one that is missing would be no id.
static bool bytes_are_whole_(const SentencePiece *model) {
    int count = 0;
    for (int byte = 0; byte < 256; byte++) count += model->bytes[byte] >= 0;
    return count == 0 || count == 256;
}

static int sentencepiece_open_(SentencePiece *model, const char *name, const char *path, Error *err) {
    int64_t bytes = 0;
    Error wrong = {0};
    model->file = (unsigned char *)file_read_whole(path, MOST_BYTES, &bytes, &wrong);
    if (model->file == NULL) return error_set(err, EXIT_USAGE, "%s: %s", name, wrong.text);
    model->model_type = MODEL_UNIGRAM;
    model->dummy_prefix = model->extra_blanks_go = model->escapes_blanks = true;
    if (sentencepiece_read_model_(model, bytes) != 0)
        return error_set(err, EXIT_USAGE, "%s: %s is no SentencePiece model, or is damaged; name a .model file", name,
                         path);
    index_(model);
    if (model->unknown < 0)
        return error_set(err, EXIT_USAGE, "%s: %s has no piece for unknown text; it is damaged", name, path);
    if (!bytes_are_whole_(model))
        return error_set(err, EXIT_USAGE, "%s: %s has pieces for some bytes and not for all 256; it is damaged", name,
                         path);
    if ((model->model_type == MODEL_UNIGRAM || model->model_type == MODEL_BPE) && !model->blank_behind) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: %s splits text in a way that is not known here (BPE and unigram with blanks in front are); "
                     "use sample.tokenizer ids",
                     name, path);
}

SentencePiece *sentencepiece_open(const char *name, const char *path, Error *err) {
    SentencePiece *model = xcalloc(1, sizeof *model);
    if (sentencepiece_open_(model, name, path, err) == 0) return model;
    sentencepiece_close(model);
    return NULL;
}

void sentencepiece_close(SentencePiece *model) {
    if (model == NULL) return;
    free(model->file);
    free(model->pieces);
    free(model->table);
    free(model);
}

int64_t sentencepiece_count(const SentencePiece *model) {
    return model->count;
}

int64_t sentencepiece_end(const SentencePiece *model) {
    return model->end;
}

// ---------------------------------------------------------------- text to ids

int64_t sentencepiece_capacity(int64_t length) {
    return BLANK_BYTES * (length + 1);
}

// The text as pieces spell it, into `out` (sentencepiece_capacity bytes): blanks escaped, and one put in front.
static int64_t normalize_(const SentencePiece *model, const char *text, int64_t length, char *out) {
    int64_t used = 0, blank = model->escapes_blanks ? BLANK_BYTES : 1;
    const char *sign = model->escapes_blanks ? BLANK : " ";
    bool behind_blank = model->extra_blanks_go;
    for (int64_t i = 0; i <= length; i++) {
        bool prefix = i == 0 && model->dummy_prefix;
        char c = i > 0 ? text[i - 1] : ' ';
        if (i == 0 && !prefix) continue;
        if (model->normalizes && (c == '\t' || c == '\n' || c == '\r')) c = ' ';
        if (c != ' ') {
            out[used++] = c;
        } else if (prefix || !model->extra_blanks_go || !behind_blank) {
            memcpy(out + used, sign, (size_t)blank);
            used += blank;
        }
        behind_blank = c == ' ';
    }
    if (model->extra_blanks_go && used >= blank && memcmp(out + used - blank, sign, (size_t)blank) == 0) used -= blank;
    return used;
}

// One run of bytes that has become one piece, or has none.
typedef struct Symbol {
    int64_t begin, length;
    int64_t next;   // -1: the last one
    int32_t merged; // piece of this and the next symbol, -1: none
    bool fixed;     // a user's piece, which is never merged
} Symbol;

// Bytes of the character at `at`; what is no UTF-8 goes byte by byte.
static int64_t character_(const char *at, const char *end) {
    int length = json_utf8_length(at, end);
    return length > 0 ? length : 1;
}

// Length of the longest piece of a user at `at`, 0: none.
static int64_t user_piece_(const SentencePiece *model, const char *at, int64_t left) {
    if (!model->has_user) return 0;
    for (int64_t n = left < model->longest ? left : model->longest; n > 0; n--) {
        int32_t id = sentencepiece_find_(model, at, n);
        if (id >= 0 && model->pieces[id].type == PIECE_USER) return n;
    }
    return 0;
}

static void sentencepiece_look_(const SentencePiece *model, const char *text, Symbol *symbols, int64_t i) {
    Symbol *left = &symbols[i];
    left->merged = -1;
    if (left->next < 0 || left->fixed || symbols[left->next].fixed) return;
    left->merged = sentencepiece_find_(model, text + left->begin, left->length + symbols[left->next].length);
}

static int64_t sentencepiece_put_(const SentencePiece *model, const char *text, int64_t length, int32_t id,
                                  int32_t *ids, int64_t used) {
    if (id >= 0) {
        ids[used++] = id;
    } else if (model->byte_fallback) {
        for (int64_t i = 0; i < length; i++) ids[used++] = model->bytes[(unsigned char)text[i]];
    } else if (used == 0 || ids[used - 1] != model->unknown) { // a run of unknown text is one
        ids[used++] = (int32_t)model->unknown;
    }
    return used;
}

// Merges the pair with the highest score, the first of equals, until no pair is a piece.
static int64_t encode_bpe_(const SentencePiece *model, const char *text, int64_t length, int32_t *ids) {
    Symbol *symbols = xmalloc((size_t)(length + 1) * sizeof *symbols);
    int64_t count = 0, used = 0;
    for (int64_t at = 0; at < length; count++) {
        int64_t user = user_piece_(model, text + at, length - at);
        int64_t n = user > 0 ? user : character_(text + at, text + length);
        symbols[count] = (Symbol){at, n, at + n < length ? count + 1 : -1, -1, user > 0};
        at += n;
    }
    for (int64_t i = 0; i < count; i++) sentencepiece_look_(model, text, symbols, i);
    for (;;) {
        int64_t best = -1, before = -1, previous = -1;
        for (int64_t i = count > 0 ? 0 : -1; i >= 0; previous = i, i = symbols[i].next) {
            int32_t id = symbols[i].merged;
            if (id < 0 || (best >= 0 && model->pieces[id].score <= model->pieces[symbols[best].merged].score)) continue;
            best = i;
            before = previous;
        }
        if (best < 0) break;
        Symbol *gone = &symbols[symbols[best].next];
        symbols[best].length += gone->length;
        symbols[best].next = gone->next;
        sentencepiece_look_(model, text, symbols, best);
        if (before >= 0) sentencepiece_look_(model, text, symbols, before);
    }
    for (int64_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[i].next) {
        const char *from = text + symbols[i].begin;
        used = sentencepiece_put_(model, from, symbols[i].length, sentencepiece_find_(model, from, symbols[i].length),
                                  ids, used);
    }
    free(symbols);
    return used;
}

// The best way to reach a place in the text.
typedef struct Reached {
    float score;
    int64_t from;
    int32_t id; // -1: unknown
    bool known;
    int64_t to; // on the way that was chosen: where it goes on, and with which piece
    int32_t by;
} Reached;

static void reach_(Reached *to, float score, int64_t from, int32_t id) {
    if (to->known && score <= to->score) return;
    *to = (Reached){score, from, id, true, -1, -1};
}

// Every piece that begins at `at`; a character that is none of its own counts as unknown, at a cost.
static void extend_(const SentencePiece *model, const char *text, int64_t length, Reached *reached, int64_t at) {
    int64_t left = length - at, character = character_(text + at, text + length);
    bool single = false;
    for (int64_t n = 1; n <= left && n <= model->longest; n++) {
        int32_t id = sentencepiece_find_(model, text + at, n);
        if (id < 0) continue;
        const Piece *piece = &model->pieces[id];
        float score = piece->type == PIECE_USER ? (float)((double)n * (double)model->most - 0.1) : piece->score;
        reach_(&reached[at + n], reached[at].score + score, at, id);
        single = single || n == character;
    }
    const float penalty = 10.0f;
    if (!single) reach_(&reached[at + character], reached[at].score + (model->least - penalty), at, -1);
}

// The segmentation with the highest sum of scores.
static int64_t encode_unigram_(const SentencePiece *model, const char *text, int64_t length, int32_t *ids) {
    Reached *reached = xcalloc((size_t)length + 1, sizeof *reached);
    reached[0].known = true;
    for (int64_t at = 0; at < length; at++)
        if (reached[at].known) extend_(model, text, length, reached, at);
    for (int64_t at = length; at > 0; at = reached[at].from) {
        reached[reached[at].from].to = at;
        reached[reached[at].from].by = reached[at].id;
    }
    int64_t used = 0;
    for (int64_t at = 0; at < length; at = reached[at].to)
        used = sentencepiece_put_(model, text + at, reached[at].to - at, reached[at].by, ids, used);
    free(reached);
    return used;
}

int64_t sentencepiece_encode(const SentencePiece *model, const char *text, int64_t length, int32_t *ids) {
    char *spelt = xmalloc((size_t)sentencepiece_capacity(length));
    int64_t n = length == 0 ? 0 : normalize_(model, text, length, spelt);
    int64_t used =
        model->model_type == MODEL_BPE ? encode_bpe_(model, spelt, n, ids) : encode_unigram_(model, spelt, n, ids);
    free(spelt);
    return used;
}

// ---------------------------------------------------------------- ids to text

static bool begins_blank_(const char *text, int64_t length) {
    return length >= BLANK_BYTES && memcmp(text, BLANK, BLANK_BYTES) == 0;
}

static int byte_of_(const SentencePiece *model, int32_t id) {
    int byte = 0;
    while (byte < 256 && model->bytes[byte] != id) byte++;
    return byte;
}

// A piece's text, its blanks as blanks, from byte `from` on.
static void write_piece_(const Piece *piece, int64_t from, FILE *out) {
    for (int64_t i = from; i < piece->length;) {
        bool blank = begins_blank_(piece->text + i, piece->length - i);
        fputc(blank ? ' ' : piece->text[i], out);
        i += blank ? BLANK_BYTES : 1;
    }
}

void sentencepiece_decode(const SentencePiece *model, const int32_t *ids, int64_t count, FILE *out) {
    bool beginning = model->dummy_prefix || model->extra_blanks_go; // blanks here were put in front, or would have gone
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= model->count) continue;
        const Piece *piece = &model->pieces[ids[i]];
        if (piece->type == PIECE_CONTROL) continue;
        int64_t from = beginning && begins_blank_(piece->text, piece->length) ? BLANK_BYTES : 0;
        if (piece->type == PIECE_UNKNOWN)
            fputs(" \xE2\x81\x87 ", out);
        else if (piece->type == PIECE_BYTE)
            fputc(byte_of_(model, ids[i]), out);
        else
            write_piece_(piece, from, out);
        beginning = beginning && from > 0 && from == piece->length && model->extra_blanks_go;
    }
}
