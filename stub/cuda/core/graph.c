// Graphs and their nodes.
#include "cuda/core/graph.h"
#include "cuda/core/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static phc_table *graphs, *nodes;
static uint64_t last_graph;

phc_graph *phc_graph_create(void) {
  phc_graph *graph = calloc(1, sizeof *graph);
  if (!graph) return NULL;
  graph->references = 1;
  graph->id = __atomic_add_fetch(&last_graph, 1, __ATOMIC_RELAXED);
  phc_table_set(&graphs, (uintptr_t)graph, graph);
  return graph;
}
cudaError_t phc_graph_make(phc_graph **graph, unsigned flags) {
  if (!graph || flags) return cudaErrorInvalidValue;
  *graph = phc_graph_create();
  return *graph ? 0 : cudaErrorMemoryAllocation;
}

bool phc_graph_alive(const phc_graph *graph) { return phc_table_get(&graphs, (uintptr_t)graph) != NULL; }
bool phc_node_alive(const phc_node *node) { return phc_table_get(&nodes, (uintptr_t)node) != NULL; }

phc_graph *phc_graph_keep(phc_graph *graph) {
  __atomic_fetch_add(&graph->references, 1, __ATOMIC_RELAXED);
  return graph;
}

void phc_graph_drop(phc_graph *graph) {
  if (__atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
  for (unsigned i = 0; i < graph->count; i++) {
    phc_node *node = graph->nodes[i];
    phc_table_set(&nodes, (uintptr_t)node, NULL);
    for (unsigned a = 0; a < node->action_count; a++) node->actions[a].drop(node->actions[a].data);
    free(node->actions);
    free(node->operands);
    free(node->deps);
    free(node);
  }
  free(graph->nodes);
  free(graph);
}

cudaError_t phc_graph_destroy(phc_graph *graph) {
  if (!phc_graph_alive(graph) || graph->captured) return cudaErrorInvalidValue;
  phc_table_set(&graphs, (uintptr_t)graph, NULL);
  phc_graph_drop(graph);
  return 0;
}

phc_node *phc_graph_add(phc_graph *graph, int type, const unsigned *deps, unsigned count) {
  phc_node *node = calloc(1, sizeof *node);
  if (!node) abort();
  *node = (phc_node){.graph = graph, .type = type, .index = graph->count};
  node->deps = malloc((count + 1) * sizeof *deps);
  if (!node->deps) abort();
  for (unsigned i = 0; i < count; i++) {
    bool known = false;
    for (unsigned j = 0; j < node->dep_count; j++) known |= node->deps[j] == deps[i];
    if (!known) node->deps[node->dep_count++] = deps[i];
  }
  if (graph->count == graph->room) {
    graph->room = graph->room ? graph->room * 2 : 64;
    graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
    if (!graph->nodes) abort();
  }
  graph->nodes[graph->count++] = node;
  phc_table_set(&nodes, (uintptr_t)node, node);
  return node;
}

void phc_node_action(phc_node *node, phc_action action) {
  node->actions = realloc(node->actions, (node->action_count + 1) * sizeof action);
  if (!node->actions) abort();
  node->actions[node->action_count++] = action;
}

cudaError_t phc_graph_list(phc_graph *graph, phc_node **list, size_t *count, bool roots) {
  if (!phc_graph_alive(graph) || !count) return cudaErrorInvalidValue;
  size_t found = 0;
  for (unsigned i = 0; i < graph->count; i++) {
    if (roots && graph->nodes[i]->dep_count) continue;
    if (list && found < *count) list[found] = graph->nodes[i];
    found++;
  }
  if (list)
    for (size_t i = found; i < *count; i++) list[i] = NULL;
  if (!list || found < *count) *count = found;
  return 0;
}

bool *phc_graph_before(const phc_graph *graph, const unsigned *from, unsigned count) {
  bool *before = calloc(graph->count + 1, sizeof *before);
  if (!before) abort();
  for (unsigned i = 0; i < count; i++) before[from[i]] = true;
  // A node comes after those that it depends on, by its place in the graph.
  for (unsigned i = graph->count; i-- > 0;) {
    if (!before[i]) continue;
    for (unsigned d = 0; d < graph->nodes[i]->dep_count; d++) before[graph->nodes[i]->deps[d]] = true;
  }
  return before;
}

static const char *label(const phc_node *node) {
  static const char *const names[] = {"kernel", "memcpy", "memset", "host", "graph", "empty", "wait", "record"};
  return node->kernel ? phc_kernel_display(node->kernel) : names[node->type];
}

cudaError_t phc_graph_dot(const phc_graph *graph, const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) return cudaErrorOperatingSystem;
  fprintf(file, "digraph dot {\n");
  for (unsigned i = 0; i < graph->count; i++) {
    fprintf(file, "\"node_%u\" [shape=\"%s\" label=\"%u ", i, graph->nodes[i]->kernel ? "octagon" : "record", i);
    for (const char *c = label(graph->nodes[i]); *c; c++) {
      if (strchr("\"\\{}<>|", *c)) fputc('\\', file);
      fputc(*c, file);
    }
    fprintf(file, "\"];\n");
    for (unsigned d = 0; d < graph->nodes[i]->dep_count; d++)
      fprintf(file, "\"node_%u\" -> \"node_%u\";\n", graph->nodes[i]->deps[d], i);
  }
  fprintf(file, "}\n");
  return fclose(file) ? cudaErrorOperatingSystem : 0;
}
