// libnvrtc: run-time compilation. No code is generated: the result is a text in the form of PTX that
// lists the kernels of the source, which is all that cuModuleLoadData and a launch need here.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "abi/export.h"
#include "abi/cuda_abi.h"
#include "rank/rank.h"

enum {
  NVRTC_SUCCESS = 0,
  NVRTC_OUT_OF_MEMORY = 1,
  NVRTC_INVALID_INPUT = 3,
  NVRTC_INVALID_PROGRAM = 4,
  NVRTC_NO_NAMES_AFTER_COMPILATION = 8,
  NVRTC_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
  NVRTC_NAME_NOT_VALID = 10,
};
typedef int nvrtcResult;

typedef struct ph_expression {
  struct ph_expression *next;
  char *text;     // as given
  char *lowered;  // without the address operator and spaces around
} ph_expression;
typedef struct ph_program {
  uint64_t magic;
  char *source;
  bool compiled;
  ph_expression *expressions;
  char *image;
  size_t size;  // of the image, its end included
} *nvrtcProgram;
#define PROGRAM_MAGIC 0x70686e7672746331ULL

static nvrtcResult leave(nvrtcResult code) {
  ph_leave();
  return code;
}
#define CALL(name, parameters, expression) \
  PH_EXPORT nvrtcResult name parameters {  \
    ph_enter();                            \
    return leave(expression);              \
  }
// clang-format off
#define ON_PROGRAM(name, parameters, expression) \
  CALL(name, parameters, !program || program->magic != PROGRAM_MAGIC ? NVRTC_INVALID_PROGRAM : (expression))
// clang-format on

static nvrtcResult give(void *to, const void *value, size_t size) {
  if (!to) return NVRTC_INVALID_INPUT;
  memcpy(to, value, size);
  return NVRTC_SUCCESS;
}

PH_EXPORT const char *nvrtcGetErrorString(nvrtcResult code) {
  static const char *const names[] = {
      "NVRTC_SUCCESS",
      "NVRTC_ERROR_OUT_OF_MEMORY",
      "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
      "NVRTC_ERROR_INVALID_INPUT",
      "NVRTC_ERROR_INVALID_PROGRAM",
      "NVRTC_ERROR_INVALID_OPTION",
      "NVRTC_ERROR_COMPILATION",
      "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
      "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
      "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
      "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
      "NVRTC_ERROR_INTERNAL_ERROR",
      "NVRTC_ERROR_TIME_FILE_WRITE_FAILED",
  };
  bool known = code >= 0 && code < (int)(sizeof names / sizeof *names);
  return known ? names[code] : "NVRTC_ERROR unknown";
}

static nvrtcResult version(int *major, int *minor) {
  if (!major || !minor) return NVRTC_INVALID_INPUT;
  *major = PH_CUDA_RUNTIME_VERSION / 1000;
  *minor = PH_CUDA_RUNTIME_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}
CALL(nvrtcVersion, (int *major, int *minor), version(major, minor))
static const int architectures[] = {75, 80, 86, 87, 89, 90, 100, 103, 120};
CALL(nvrtcGetNumSupportedArchs, (int *count),
     give(count, &(int){sizeof architectures / sizeof *architectures}, sizeof(int)))
CALL(nvrtcGetSupportedArchs, (int *list), give(list, architectures, sizeof architectures))

static nvrtcResult create(nvrtcProgram *program, const char *source) {
  if (!program || !source) return NVRTC_INVALID_INPUT;
  nvrtcProgram made = calloc(1, sizeof *made);
  if (!made || !(made->source = strdup(source))) {
    free(made);
    return NVRTC_OUT_OF_MEMORY;
  }
  made->magic = PROGRAM_MAGIC;
  *program = made;
  return NVRTC_SUCCESS;
}
static nvrtcResult destroy(nvrtcProgram *program) {
  if (!program || !*program || (*program)->magic != PROGRAM_MAGIC) return NVRTC_INVALID_PROGRAM;
  for (ph_expression *next, *at = (*program)->expressions; at; at = next) {
    next = at->next;
    free(at->text);
    free(at->lowered);
    free(at);
  }
  (*program)->magic = 0;
  free((*program)->source);
  free((*program)->image);
  free(*program);
  *program = NULL;
  return NVRTC_SUCCESS;
}
CALL(nvrtcCreateProgram,
     (nvrtcProgram * program, const char *source, const char *name, int count, const char *const *headers,
      const char *const *names),
     ((void)name, (void)headers, (void)names, count < 0 ? NVRTC_INVALID_INPUT : create(program, source)))
CALL(nvrtcDestroyProgram, (nvrtcProgram * program), destroy(program))

static nvrtcResult add_expression(nvrtcProgram program, const char *text) {
  if (!text || !*text) return NVRTC_INVALID_INPUT;
  if (program->compiled) return NVRTC_NO_NAMES_AFTER_COMPILATION;
  const char *start = text + strspn(text, "& \t\r\n");
  size_t length = strlen(start);
  while (length && isspace((unsigned char)start[length - 1])) length--;
  ph_expression *made = calloc(1, sizeof *made);
  if (!made) return NVRTC_OUT_OF_MEMORY;
  made->text = strdup(text);
  made->lowered = strndup(start, length);
  made->next = program->expressions;
  program->expressions = made;
  return NVRTC_SUCCESS;
}
static nvrtcResult lowered_name(nvrtcProgram program, const char *text, const char **lowered) {
  if (!text || !lowered) return NVRTC_INVALID_INPUT;
  if (!program->compiled) return NVRTC_NO_LOWERED_NAMES_BEFORE_COMPILATION;
  for (ph_expression *at = program->expressions; at; at = at->next)
    if (!strcmp(at->text, text)) return give(lowered, &at->lowered, sizeof at->lowered);
  return NVRTC_NAME_NOT_VALID;
}
ON_PROGRAM(nvrtcAddNameExpression, (nvrtcProgram program, const char *text), add_expression(program, text))
ON_PROGRAM(nvrtcGetLoweredName, (nvrtcProgram program, const char *text, const char **lowered),
           lowered_name(program, text, lowered))

// ---------------------------------------------------------------- the stand-in for a compiler
static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

// Comments become blanks: they may mention kernels.
static void blank_comments(char *at) {
  while ((at = strchr(at, '/'))) {
    size_t length = 0;
    const char *end = at[1] == '*' ? strstr(at + 2, "*/") : NULL;
    if (at[1] == '/') length = strcspn(at, "\n");
    if (at[1] == '*') length = end ? (size_t)(end + 2 - at) : strlen(at);
    memset(at, ' ', length);
    at += length ? length : 1;
  }
}
static const char *skip_blanks(const char *at) { return at + strspn(at, " \t\r\n\\"); }
static const char *skip_parentheses(const char *at) {
  for (int depth = 0; *at; at++) {
    if (*at == '(') depth++;
    if (*at == ')' && --depth == 0) return at + 1;
  }
  return at;
}

// After `__global__`: the last word before a parenthesis that is not an attribute's.
static const char *kernel_name(const char *at, size_t *length) {
  for (at = skip_blanks(at); *at && *at != ';' && *at != '{';) {
    if (!in_word(*at)) {
      at = skip_blanks(at + 1);
      continue;
    }
    const char *word = at;
    while (in_word(*at)) at++;
    *length = (size_t)(at - word);
    at = skip_blanks(at);
    if (*at != '(') continue;
    if (word[0] != '_' || word[1] != '_') return word;
    at = skip_blanks(skip_parentheses(at));
  }
  return NULL;
}

static nvrtcResult compile(nvrtcProgram program) {
  const char *marker = "__global__";
  free(program->image);
  FILE *out = open_memstream(&program->image, &program->size);
  if (!out) return NVRTC_OUT_OF_MEMORY;
  int arch = ph_connected() ? ph_gpu()->major * 10 + ph_gpu()->minor : 90;
  fprintf(out,
          "// Kernels are simulated: this text lists them and holds no code.\n.version 8.0\n.target "
          "sm_%d\n.address_size 64\n",
          arch);
  blank_comments(program->source);
  for (const char *at = program->source; (at = strstr(at, marker));) {
    size_t length = 0;
    const char *name = kernel_name(at += strlen(marker), &length);
    if (name) fprintf(out, ".visible .entry %.*s()\n{\nret;\n}\n", (int)length, name);
  }
  for (ph_expression *e = program->expressions; e; e = e->next)
    fprintf(out, ".visible .entry \"%s\"()\n{\nret;\n}\n", e->lowered);
  fclose(out);
  if (!program->image) return NVRTC_OUT_OF_MEMORY;
  program->size++;
  program->compiled = true;
  return NVRTC_SUCCESS;
}
static nvrtcResult compile_charged(nvrtcProgram program) {
  nvrtcResult code = compile(program);
  ph_charge(PH_API_NVRTC_COMPILE);
  return code;
}
ON_PROGRAM(nvrtcCompileProgram, (nvrtcProgram program, int count, const char *const *options),
           count < 0 || (count && !options) ? NVRTC_INVALID_INPUT : compile_charged(program))

// clang-format off
#define IMAGE(kind)                                                                                 \
  ON_PROGRAM(nvrtcGet##kind##Size, (nvrtcProgram program, size_t *size),                            \
             !program->compiled ? NVRTC_INVALID_PROGRAM : give(size, &program->size, sizeof *size)) \
  ON_PROGRAM(nvrtcGet##kind, (nvrtcProgram program, char *to),                                      \
             !program->compiled ? NVRTC_INVALID_PROGRAM : give(to, program->image, program->size))
// clang-format on
IMAGE(PTX)
IMAGE(CUBIN)
IMAGE(LTOIR)
ON_PROGRAM(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t *size), give(size, &(size_t){1}, sizeof *size))
ON_PROGRAM(nvrtcGetProgramLog, (nvrtcProgram program, char *to), give(to, "", 1))
