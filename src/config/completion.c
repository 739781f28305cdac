// Writes the completion scripts for bash and zsh. Both are fixed texts around lists that come from the option table and
// the schema, so a new option or key is completed without a change here.
#include "options.h"

#include "config_schema.h"

#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Both shells

static bool completion_is_(const OptionRow *row, const char *argument) {
    return row->argument != NULL && strcmp(row->argument, argument) == 0;
}

static bool is_config_(const OptionRow *row) {
    return row->offset == offsetof(Options, config);
}

// Writes "a|b" as "a b".
static void completion_words_(FILE *file, const char *words) {
    for (; *words != '\0'; words++) fputc(*words == '|' ? ' ' : *words, file);
}

// Writes the values that can be listed, separated by blanks. Returns false if there are none.
static bool values_(FILE *file, const ConfigKey *key) {
    if (key->type == KEY_BOOL) return fputs("true false", file), true;
    if (key->zero_word != NULL) fputs(key->zero_word, file);
    for (int i = 0; key->words != NULL && key->words[i] != NULL; i++)
        fprintf(file, "%s%s", i > 0 || key->zero_word != NULL ? " " : "", key->words[i]);
    return key->zero_word != NULL || key->words != NULL;
}

// Writes the branches of a shell's `case` over a key's name; `before` and `after` go around its values. Keys that are
// texts complete to files.
static void value_cases_(FILE *file, const char *before, const char *after, const char *text) {
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        if (key->type == KEY_INT && key->zero_word == NULL && key->words == NULL) continue;
        if (key->type == KEY_NUMBER && key->zero_word == NULL) continue;
        fprintf(file, "    %s) ", key->name);
        if (config_takes_text(key))
            fputs(text, file);
        else {
            fputs(before, file);
            values_(file, key);
            fputs(after, file);
        }
        fputs(" ;;\n", file);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// bash: works with and without the package bash-completion.

static void bash_options_(FILE *file) {
    for (int i = 0; i < option_row_count; i++) {
        fprintf(file, "%s--%s", i > 0 ? " " : "", option_rows[i].name);
        if (option_rows[i].letter != 0) fprintf(file, " -%c", option_rows[i].letter);
    }
}

// Writes what completes the value of each option that takes one.
static void bash_cases_(const char *name, FILE *file) {
    for (int i = 0; i < option_row_count; i++) {
        const OptionRow *row = &option_rows[i];
        if (row->argument == NULL) continue;
        fputs("    ", file);
        if (row->letter != 0) fprintf(file, "-%c | ", row->letter);
        fprintf(file, "--%s) ", row->name);
        if (is_config_(row))
            fprintf(file, "_%s_files \"$cur\" yaml yml", name);
        else if (completion_is_(row, OPTION_KEY_VALUE))
            fprintf(file, "_%s_override \"$key\" \"$cur\"", name);
        else if (completion_is_(row, "FILE"))
            fprintf(file, "_%s_files \"$cur\"", name);
        else if (completion_is_(row, "DIR"))
            fprintf(file, "_%s_reply -d -- \"$cur\"", name);
        else if (option_is_words(row)) {
            fprintf(file, "_%s_reply -W \"", name);
            completion_words_(file, row->argument);
            fputs("\" -- \"$cur\"", file);
        } else
            fputs(":", file);
        fputs(" ;;\n", file);
    }
}

// Writes a text in which ^ means the program's name.
static void named_(FILE *file, const char *text, const char *name) {
    for (; *text != '\0'; text++) {
        if (*text == '^')
            fputs(name, file);
        else
            fputc(*text, file);
    }
}

static const char bash_helpers[] = "_^_reply() { mapfile -t COMPREPLY < <(compgen \"$@\"); }\n"
                                   "\n"
                                   "# Files that begin with $1, of the endings $2...; folders, to go on from.\n"
                                   "_^_files() {\n"
                                   "  local begin=$1 ending\n"
                                   "  shift\n"
                                   "  compopt -o filenames 2>/dev/null\n"
                                   "  if [[ $# == 0 ]]; then\n"
                                   "    _^_reply -f -- \"$begin\"\n"
                                   "    return\n"
                                   "  fi\n"
                                   "  mapfile -t COMPREPLY < <(\n"
                                   "    compgen -d -- \"$begin\"\n"
                                   "    for ending; do compgen -f -X \"!*.$ending\" -- \"$begin\"; done\n"
                                   "  )\n"
                                   "}\n"
                                   "\n";

static const char bash_main[] =
    "_^() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} previous key='' at=$COMP_CWORD\n"
    "  # Where = separates words, KEY=VALUE is three of them and KEY= two, the last being the = itself.\n"
    "  if [[ $cur == = ]]; then\n"
    "    cur=\n"
    "    at=$((at + 1))\n"
    "  fi\n"
    "  if [[ $at -ge 2 && ${COMP_WORDS[at - 1]} == = ]]; then\n"
    "    key=${COMP_WORDS[at - 2]}\n"
    "    at=$((at - 2))\n"
    "    if [[ $key == -* ]]; then # --option=VALUE\n"
    "      key=\n"
    "      at=$((at + 1))\n"
    "    fi\n"
    "  fi\n"
    "  previous=${COMP_WORDS[at - 1]}\n"
    "  if [[ $previous == = ]]; then previous=${COMP_WORDS[at - 2]}; fi # --option=KEY=VALUE\n";

static void bash_(const char *name, FILE *file) {
    fprintf(file, "# Completion for bash, made by %s --completion bash.\n", name);
    named_(file, bash_helpers, name);
    named_(file,
           "# KEY=VALUE: the key, empty while it is being typed, and what is there of it or of its value.\n"
           "_^_override() {\n"
           "  local key=$1 cur=$2 begin='' keys=\"",
           name);
    for (int i = 0; i < config_key_count; i++) fprintf(file, "%s%s=", i > 0 ? " " : "", config_keys[i].name);
    named_(file,
           "\"\n"
           "  if [[ -z $key && $cur != *=* ]]; then\n"
           "    compopt -o nospace 2>/dev/null\n"
           "    _^_reply -W \"$keys\" -- \"$cur\"\n"
           "    return\n"
           "  fi\n"
           "  if [[ -z $key ]]; then # = separates no words here\n"
           "    key=${cur%%=*}\n"
           "    begin=$key=\n"
           "    cur=${cur#*=}\n"
           "  fi\n"
           "  case $key in\n",
           name);
    char before[80], text[80];
    snprintf(before, sizeof before, "_%s_reply -W \"", name);
    snprintf(text, sizeof text, "_%s_files \"$cur\"", name);
    value_cases_(file, before, "\" -- \"$cur\"", text);
    named_(file,
           "  esac\n"
           "  if [[ -n $begin ]]; then COMPREPLY=(\"${COMPREPLY[@]/#/$begin}\"); fi\n"
           "}\n\n",
           name);
    named_(file, bash_main, name);
    fputs("  COMPREPLY=()\n  case $previous in\n", file);
    bash_cases_(name, file);
    named_(file, "    *) _^_reply -W \"", name);
    bash_options_(file);
    named_(file, "\" -- \"$cur\" ;;\n  esac\n}\n\ncomplete -F _^ ^\n", name);
}

// ---------------------------------------------------------------------------------------------------------------------
// zsh

// Quotes a text for the inside of single quotes and of a description, which ends at a bracket or colon.
static void zsh_text_(FILE *file, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", file);
        else if (strchr("[]:\\", *text) != NULL)
            fprintf(file, "\\%c", *text);
        else
            fputc(*text, file);
    }
}

static void zsh_action_(const char *name, const OptionRow *row, FILE *file) {
    fputc(':', file);
    zsh_text_(file, row->argument);
    fputc(':', file);
    if (is_config_(row))
        fputs("_files -g \"*.(yaml|yml)\"", file);
    else if (completion_is_(row, OPTION_KEY_VALUE))
        fprintf(file, "_%s_override", name);
    else if (completion_is_(row, "FILE"))
        fputs("_files", file);
    else if (completion_is_(row, "DIR"))
        fputs("_files -/", file);
    else if (option_is_words(row)) {
        fputc('(', file);
        completion_words_(file, row->argument);
        fputc(')', file);
    } else
        fputc(' ', file); // free text: its name is shown, nothing is offered
}

// Writes '--name=[meaning]:FILE:_files', once more for the letter.
static void zsh_option_(const char *name, const OptionRow *row, bool letter, FILE *file) {
    fputs("    '", file);
    if (row->kind == OPTION_LIST) fputc('*', file);
    if (letter)
        fprintf(file, "-%c%s", row->letter, row->argument != NULL ? "+" : "");
    else
        fprintf(file, "--%s%s", row->name, row->argument != NULL ? "=" : "");
    fputc('[', file);
    zsh_text_(file, row->meaning);
    fputc(']', file);
    if (row->argument != NULL) zsh_action_(name, row, file);
    fputs("' \\\n", file);
}

static void zsh_keys_(FILE *file) {
    for (int i = 0; i < config_key_count; i++) {
        fprintf(file, "    '%s:", config_keys[i].name);
        zsh_text_(file, config_keys[i].meaning);
        fputs("'\n", file);
    }
}

static void zsh_(const char *name, FILE *file) {
    fprintf(file, "#compdef %s\n# Completion for zsh, made by %s --completion zsh.\n", name, name);
    named_(file, "_^_override() {\n  local -a keys words\n  keys=(\n", name);
    zsh_keys_(file);
    fputs("  )\n"
          "  if ! compset -P '*='; then\n"
          "    _describe -t keys key keys -S =\n"
          "    return\n"
          "  fi\n"
          "  case ${${IPREFIX%=}##*=} in\n",
          file);
    value_cases_(file, "words=(", ")", "_files; return");
    fputs("  esac\n  compadd -a words\n}\n\n", file);
    named_(file, "_^() {\n  _arguments -s \\\n", name);
    for (int i = 0; i < option_row_count; i++) {
        if (option_rows[i].letter != 0) zsh_option_(name, &option_rows[i], true, file);
        zsh_option_(name, &option_rows[i], false, file);
    }
    named_(file,
           "    && return 0\n}\n\n"
           "# Called as a file of fpath, or sourced.\n"
           "if [[ ${funcstack[1]} == _^ ]]; then _^ \"$@\"; else compdef _^ ^; fi\n",
           name);
}

void completion_write(const char *program, const char *shell, FILE *file) {
    if (strcmp(shell, "zsh") == 0)
        zsh_(program, file);
    else
        bash_(program, file);
}
