// Writes the manual page (troff) from the tables of options and configuration keys.
#include "options.h"

#include "config_schema.h"
#include "base/version.h"

#include <string.h>

// Writes a text with everything escaped that roff would interpret: a backslash anywhere, a dot or an apostrophe at the
// beginning of a line. A hyphen that is to be copied into a shell has to be a minus sign.
static void manual_text_(FILE *file, const char *text) {
    for (const char *at = text; *at != '\0'; at++) {
        if ((*at == '.' || *at == '\'') && (at == text || at[-1] == '\n')) fputs("\\&", file);
        if (*at == '\\')
            fputs("\\e", file);
        else if (*at == '-')
            fputs("\\-", file);
        else
            fputc(*at, file);
    }
}

static void options_(FILE *file) {
    fputs(".SH OPTIONS\n", file);
    for (int i = 0; i < option_row_count; i++) {
        const OptionRow *row = &option_rows[i];
        fputs(".TP\n", file);
        if (row->letter != 0) fprintf(file, "\\fB\\-%c\\fR, ", row->letter);
        fputs("\\fB\\-\\-", file);
        manual_text_(file, row->name);
        fputs("\\fR", file);
        if (row->argument != NULL) {
            fputs(" \\fI", file);
            manual_text_(file, row->argument);
            fputs("\\fR", file);
        }
        fputc('\n', file);
        manual_text_(file, row->meaning);
        fputs(".\n", file);
    }
}

static void manual_key_(FILE *file, const ConfigKey *key) {
    char expected[200];
    config_expected(key, expected, sizeof expected);
    fputs(".TP\n\\fB", file);
    manual_text_(file, key->name);
    fputs("\\fR\n", file);
    manual_text_(file, key->meaning);
    fputs(".\n", file);
    if (key->def == NULL)
        fputs("Required: ", file);
    else {
        fputs("Default ", file);
        manual_text_(file, key->def[0] == '\0' ? "\"\"" : key->def);
        fputs("; ", file);
    }
    manual_text_(file, expected);
    fputs(".\n", file);
}

static void configuration_(FILE *file) {
    fputs(".SH CONFIGURATION\nThe file is YAML: sections that hold keys.\n"
          "Below, and after \\fB\\-o\\fR, a key is written with its section.\n",
          file);
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        size_t section = (size_t)(config_short_name(key) - key->name);
        if (i == 0 || strncmp(config_keys[i - 1].name, key->name, section) != 0)
            fprintf(file, ".SS %.*s\n", (int)section - 1, key->name);
        manual_key_(file, key);
    }
}

static void exit_codes_(FILE *file) {
    static const struct {
        int code;
        const char *meaning;
    } codes[] = {{EXIT_DONE, "Done."},
                 {EXIT_FAILED, "Failed while running; the last line says where and why."},
                 {EXIT_USAGE, "Bad usage or configuration; nothing was started."},
                 {EXIT_STOPPED, "Stopped on request, with its checkpoint saved."}};
    fputs(".SH EXIT STATUS\n", file);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        fprintf(file, ".TP\n.B %d\n%s\n", codes[i].code, codes[i].meaning);
}

static const char rest[] =
    ".SH SIGNALS\n"
    "\\fBSIGTERM\\fR, \\fBSIGINT\\fR (Ctrl\\-C) and \\fBSIGUSR1\\fR end the run after the step under way, with a "
    "checkpoint where\n"
    "\\fIcheckpoint.dir\\fR is set.\n"
    "A second signal ends it at once.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B OMP_NUM_THREADS\nThreads of each rank; by default the ranks of a machine share its cores.\n"
    ".TP\n.B OMPI_MCA_*\nSettings of Open MPI are passed on to the ranks that the program starts.\n"
    ".SH FILES\n"
    "Standard output carries results, standard error status and errors.\n"
    "Metrics go to \\fIlog.metrics\\fR as JSON lines, checkpoints to \\fIcheckpoint.dir\\fR as safetensors.\n";

static void examples_(const char *program, FILE *file) {
    const char *family = strncmp(program, "train_", 6) == 0 ? program + 6 : program;
    fputs(".SH EXAMPLES\n", file);
    fprintf(file,
            "Four stages with BPipe on this machine, ten steps:\n.PP\n.EX\n"
            "    %s \\-c configs/%s_tiny.yaml \\-o train.steps=10\n.EE\n.PP\n",
            program, family);
    fprintf(file,
            "Would BPipe pay at micro\\-batch 2?\n.PP\n.EX\n"
            "    %s \\-c FILE \\-\\-plan \\-o schedule.micro_batch=2\n.EE\n.PP\n",
            program);
    fprintf(file, "Go on after a stop:\n.PP\n.EX\n    %s \\-c FILE \\-\\-resume DIR\n.EE\n", program);
}

void manual_write(const char *program, FILE *file) {
    char upper[64];
    size_t length = 0;
    for (; program[length] != '\0' && length + 1 < sizeof upper; length++)
        upper[length] =
            (char)(program[length] >= 'a' && program[length] <= 'z' ? program[length] - 32 : program[length]);
    upper[length] = '\0';
    fprintf(file, ".TH %s 1 %s \"version %s\" \"Does BPipe pay?\"\n", upper, VERSION_DATE, VERSION);
    fprintf(file, ".SH NAME\n%s \\- train a language model across pipeline stages, with or without BPipe\n", program);
    fprintf(file,
            ".SH SYNOPSIS\n.B %s\n\\fB\\-c\\fR \\fIFILE\\fR\n[\\fB\\-o\\fR \\fIKEY=VALUE\\fR]...\n"
            "[\\fIOPTION\\fR]...\n",
            program);
    fputs(".SH DESCRIPTION\n"
          "Trains the model of a YAML configuration, split into pipeline stages that run in 1F1B order.\n"
          "BPipe levels the stages' memory: the first half of the stages move activations to their partners in the\n"
          "second half and take them back in time.\n"
          "\\fB\\-\\-plan\\fR says before anything runs how much memory each stage takes, how long a step lasts,\n"
          "and whether BPipe pays.\n",
          file);
    options_(file);
    configuration_(file);
    exit_codes_(file);
    fputs(rest, file);
    examples_(program, file);
}
