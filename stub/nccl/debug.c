// Output of NCCL for NCCL_DEBUG: version, communicators, their configurations, errors. Lines have the
// form of NCCL 2.28's. What only NCCL's own search would tell (rings, channels, transports, timings) is left out.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#include "cuda/core/device.h"
#include "nccl/internal.h"

#define LINE_BYTES 2048

enum level { LEVEL_NONE, LEVEL_VERSION, LEVEL_WARN, LEVEL_INFO };

static struct {
  pid_t process;  // that has read the environment
  enum level level;
  unsigned parts;
  int file;
  char host[256];
  bool version_said;
} settings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static enum level asked_level(void) {
  const char *text = getenv("NCCL_DEBUG");
  if (!text) return LEVEL_NONE;
  if (!strcasecmp(text, "VERSION")) return LEVEL_VERSION;
  if (!strcasecmp(text, "WARN")) return LEVEL_WARN;
  return !strcasecmp(text, "INFO") || !strcasecmp(text, "TRACE") ? LEVEL_INFO : LEVEL_NONE;
}

static unsigned part_named(const char *name) {
  if (!strcasecmp(name, "INIT")) return SAY_INIT;
  if (!strcasecmp(name, "ENV")) return SAY_ENV;
  return strcasecmp(name, "ALL") ? 0 : SAY_INIT | SAY_ENV;
}

// NCCL_DEBUG_SUBSYS: a list of parts, or ^ and a list of those to leave out. NCCL's default has all of ours.
static unsigned asked_parts(void) {
  const char *text = getenv("NCCL_DEBUG_SUBSYS");
  if (!text) return SAY_INIT | SAY_ENV;
  bool inverse = *text == '^';
  char names[256], *rest = NULL;
  snprintf(names, sizeof names, "%s", text + inverse);
  unsigned parts = 0;
  for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) parts |= part_named(name);
  return inverse ? (SAY_INIT | SAY_ENV) & ~parts : parts;
}

// NCCL_DEBUG_FILE: %h is the host, %p the process. NCCL has its effect above VERSION only.
static int asked_file(void) {
  const char *pattern = getenv("NCCL_DEBUG_FILE");
  if (!pattern || !*pattern || settings.level <= LEVEL_VERSION || !strcmp(pattern, "/dev/stdout")) return STDOUT_FILENO;
  if (!strcmp(pattern, "/dev/stderr")) return STDERR_FILENO;
  char path[4096];
  size_t at = 0;
  for (const char *c = pattern; *c && at < sizeof path - sizeof settings.host; c++) {
    if (c[0] != '%' || !c[1]) {
      path[at++] = *c;
      continue;
    }
    c++;
    if (*c == 'h')
      at += (size_t)snprintf(path + at, sizeof path - at, "%s", settings.host);
    else if (*c == 'p')
      at += (size_t)snprintf(path + at, sizeof path - at, "%d", getpid());
    else if (*c == '%')
      path[at++] = '%';
    else
      at += (size_t)snprintf(path + at, sizeof path - at, "%%%c", *c);
  }
  path[at] = '\0';
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  return file < 0 ? STDOUT_FILENO : file;
}

// The level, once the environment has been read in this process.
static enum level current(void) {
  if (settings.process != getpid()) {
    settings.process = getpid();
    settings.level = asked_level();
    settings.parts = asked_parts();
    gethostname(settings.host, sizeof settings.host - 1);
    settings.host[strcspn(settings.host, ".")] = '\0';
    settings.file = asked_file();
    settings.version_said = false;
  }
  return settings.level;
}

static void write_line(const char *start, const char *format, va_list arguments) {
  char line[LINE_BYTES];
  int used = snprintf(line, sizeof line, "%s", start);
  used += vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
  if (used > LINE_BYTES - 2) used = LINE_BYTES - 2;
  line[used] = '\n';
  for (ssize_t done = 0, wrote; done <= used; done += wrote)  // one call, so that lines of threads do not mix
    if ((wrote = write(settings.file, line + done, (size_t)(used + 1 - done))) <= 0) return;
}

static void write_marked(const char *mark, const char *format, va_list arguments) {
  char start[sizeof settings.host + 64];
  snprintf(start, sizeof start, "%s:%d:%d [%d] NCCL %s ", settings.host, getpid(), gettid(), ph_current_device(), mark);
  write_line(start, format, arguments);
}

void say(unsigned part, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&lock);
  if (current() >= LEVEL_INFO && settings.parts & part) write_marked("INFO", format, arguments);
  pthread_mutex_unlock(&lock);
  va_end(arguments);
}

void say_error(const char *format, va_list arguments) {
  pthread_mutex_lock(&lock);
  if (current() >= LEVEL_WARN) write_marked("WARN", format, arguments);
  pthread_mutex_unlock(&lock);
}

static void version_line(bool marked, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (marked)
    write_marked("INFO", format, arguments);
  else
    write_line("", format, arguments);
  va_end(arguments);
}

// The minor version of CUDA that NCCL was compiled with is not known.
void say_version(void) {
  int version;
  ncclGetVersion(&version);
  pthread_mutex_lock(&lock);
  if (current() >= LEVEL_VERSION && !settings.version_said) {
    settings.version_said = true;
    version_line(settings.level >= LEVEL_INFO, "NCCL version %d.%d.%d+cuda%d", version / 10000, version / 100 % 100,
                 version % 100, PH_CUDA_MAJOR);
  }
  pthread_mutex_unlock(&lock);
}

void say_config(const ncclConfig_t *config) {
  if (!config) return;
  const struct {
    const char *name;
    int value;
  } fields[] = {
      {"Blocking", INT_FIELD(config, blocking)},
      {"CGA cluster size", INT_FIELD(config, cgaClusterSize)},
      {"Min CTAs", INT_FIELD(config, minCTAs)},
      {"Max CTAs", INT_FIELD(config, maxCTAs)},
      {"Split share", INT_FIELD(config, splitShare)},
      {"Traffic class", INT_FIELD(config, trafficClass)},
      {"Collnet enable", INT_FIELD(config, collnetEnable)},
      {"CTA policy flags", INT_FIELD(config, CTAPolicy)},
      {"shrinkShare", INT_FIELD(config, shrinkShare)},
      {"nvlsCTAs", INT_FIELD(config, nvlsCTAs)},
      {"nChannelsPerNetPeer", INT_FIELD(config, nChannelsPerNetPeer)},
      {"nvlinkCentricSched", INT_FIELD(config, nvlinkCentricSched)},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].value != NCCL_CONFIG_UNDEF_INT)
      say(SAY_ENV, "Comm config %s set to %d", fields[i].name, fields[i].value);
  if (config_network(config)) say(SAY_ENV, "Comm config Net name set to %s", config->netName);
  if (FIELD_GIVEN(config, commName) && config->commName)
    say(SAY_ENV, "Comm config Comm name set to %s", config->commName);
}

static void say_communicator(const struct ncclComm *comm, bool nvml, const char *call, const char *more,
                             const char *state) {
  char physical[32] = "";
  int device = phc_physical(comm->device);
  if (nvml) snprintf(physical, sizeof physical, " nvmlDev %d", device);
  say(SAY_INIT, "%scomm %p rank %d nranks %d cudaDev %d%s busId %x%s - %s", call, (const void *)comm, comm->rank,
      comm->nranks, comm->device, physical, (unsigned)phc_pci_bus(device) << 12, more, state);
}

void say_job(const job *work, const char *state) {
  char more[96], call[64];
  snprintf(call, sizeof call, "nccl%s ", work->call);
  if (work->kind == JOB_INIT)
    snprintf(more, sizeof more, " commId 0x%llx", (unsigned long long)work->comm->key[0]);
  else if (work->kind == JOB_SPLIT)
    snprintf(more, sizeof more, " parent %p splitCount %u color %d key %d", (void *)work->parent, work->child + 1,
             work->color, work->key);
  else
    snprintf(more, sizeof more, " parent %p", (void *)work->parent);
  say_communicator(work->comm, true, call, more, state);
}

void say_end(const struct ncclComm *comm, const char *state) { say_communicator(comm, false, "", "", state); }

NCCL_API(void, ncclResetDebugInit, void)
{
  pthread_mutex_lock(&lock);
  settings.process = 0;
  pthread_mutex_unlock(&lock);
}
