// Started by test_generate.py. `tool_tokenizer MODEL` reads lines of text; for each it prints a line with the token ids
// and a line with the text that the ids decode to.
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    static Config config;
    Error err = {0};
    char *line = NULL;
    size_t capacity = 0;
    config.model.vocab = 1 << 20;
    snprintf(config.sample.tokenizer, sizeof config.sample.tokenizer, "%s", argc > 1 ? argv[1] : "");
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, &config, &err);
    for (ssize_t length; err.code == 0 && (length = getline(&line, &capacity, stdin)) > 0;) {
        Tokens tokens = {0};
        if (line[length - 1] == '\n') line[length - 1] = '\0';
        if (tokenizer_encode(&tokenizer, "line", line, &tokens, &err) != 0) break;
        for (int64_t i = 0; i < tokens.count; i++) printf("%s%d", i > 0 ? " " : "", tokens.ids[i]);
        char *text = tokenizer_decode(&tokenizer, &tokens);
        printf("\n%s\n", text == NULL ? "" : text);
        free(text);
        free(tokens.ids);
    }
    free(line);
    if (err.code != 0) fprintf(stderr, "%s\n", err.text);
    return err.code;
}
