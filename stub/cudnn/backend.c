// The calls of cuDNN 9's graph interface: finalising an execution plan condenses its operation graph into one
// description, and executing the plan is one kernel with that description.
#include "cudnn/plan.h"

PH_EXPORT int cudnnBackendCreateDescriptor(int type, descriptor **out) {
  if (!out) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnBackendCreateDescriptor: descriptor");
  *out = NULL;
  if (!kind_of(type))
    return fail(CUDNN_STATUS_NOT_SUPPORTED,
                "cudnnBackendCreateDescriptor: descriptor type %d is not known to the simulated cuDNN", type);
  *out = new_descriptor(type);
  return *out ? CUDNN_STATUS_SUCCESS
              : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendCreateDescriptor");
}
PH_EXPORT int cudnnBackendDestroyDescriptor(descriptor *self) {
  if (self && !is_descriptor(self))
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendDestroyDescriptor: not a descriptor");
  release(self);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnBackendInitialize(descriptor *self) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendInitialize: not a descriptor");
  clear(self);
  self->finalised = false;
  return CUDNN_STATUS_SUCCESS;
}

static int set_attribute(descriptor *self, int name, int type, int64_t count, const void *elements) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: not a descriptor");
  const kind *k = kind_of(self->type);
  if (self->finalised) return fail(CUDNN_STATUS_NOT_INITIALIZED, "cudnnBackendSetAttribute: %s is finalised", k->name);
  if (name < k->low || name > k->high)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: %s has no attribute %d", k->name, name);
  if (!element_size(type))
    return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendSetAttribute: attribute type %d of %d", type, name);
  if (count < 0 || (count && !elements))
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: %lld elements of attribute %d", (long long)count,
                name);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; i++) {
      const descriptor *given = ((descriptor *const *)elements)[i];
      if (given && !is_descriptor(given))
        return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: element %lld of %d is not a descriptor",
                    (long long)i, name);
      if (given && !given->finalised)
        return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                    "cudnnBackendSetAttribute: element %lld of %d is not finalised", (long long)i, name);
    }
  }
  return store(self, name, type, count, elements)
             ? CUDNN_STATUS_SUCCESS
             : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendSetAttribute");
}
PH_EXPORT int cudnnBackendSetAttribute(descriptor *self, int name, int type, int64_t count, const void *elements) {
  return PH_BRACKET(set_attribute(self, name, type, count, elements));
}

static void note_plan(int64_t start) {
  static const char name[] = "cuDNN plan of a new shape";  // CUDNN_PLAN of phantora/wire/names.py
  ph_record record = {.kind = PH_ANNOTATION, .id = ph_name(ph_hash(name, sizeof name - 1, 0), name, sizeof name - 1)};
  record.span.start = start;
  ph_emit(&record);
}

static int finalise_plan(descriptor *self) {
  const descriptor *engine = child(child(self, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINECFG_ENGINE);
  const descriptor *operation_graph = child(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  if (!operation_graph)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: EXECUTION_PLAN's engine has no operation graph");
  self->plan = calloc(1, sizeof *self->plan);
  graph g = graph_of(operation_graph);
  if (!self->plan || !describe(&g, integer(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX), self->plan))
    return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendFinalize");
  const char *what = self->plan->call.call;
  int64_t start = ph_now();
  ph_charge(ph_call_is_convolution(&self->plan->call) ? PH_API_CONV_PLAN
            : !strcmp(what, "sdpa_bwd")               ? PH_API_CUDNN_PLAN_BACKWARD
                                                      : PH_API_CUDNN_PLAN);
  note_plan(start);
  return CUDNN_STATUS_SUCCESS;
}
static int finalise(descriptor *self) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: not a descriptor");
  if (self->finalised) return CUDNN_STATUS_SUCCESS;
  const kind *k = kind_of(self->type);
  for (int i = 0; i < 4; i++)
    if (k->needed[i] >= 0 && !find(self, k->needed[i]))
      return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: %s has no attribute %d", k->name, k->needed[i]);
  int status = CUDNN_STATUS_SUCCESS;
  if (self->type == CUDNN_BACKEND_VARIANT_PACK &&
      find(self, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count != find(self, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
    status = fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: VARIANT_PACK has unequal numbers of ids and pointers");
  if (self->type == CUDNN_BACKEND_ENGINE &&
      (integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) < 0 ||
       integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) >= engine_indices(child(self, CUDNN_ATTR_ENGINE_OPERATION_GRAPH))))
    status = fail(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize: no engine %lld for this graph",
                  (long long)integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  if (self->type == CUDNN_BACKEND_EXECUTION_PLAN) status = finalise_plan(self);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  self->finalised = true;
  ph_charge(PH_API_CUDNN_BUILD);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnBackendFinalize(descriptor *self) { return PH_BRACKET(finalise(self)); }

// Makes `config` the configuration of engine `index` for the heuristics' graph.
static int fill_configuration(descriptor *config, const descriptor *heuristics, int64_t index) {
  if (!is_descriptor(config) || config->type != CUDNN_BACKEND_ENGINECFG)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: results of ENGINEHEUR need ENGINECFG descriptors");
  const entry *operation_graph = find(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  descriptor *engine = new_descriptor(CUDNN_BACKEND_ENGINE);
  if (!engine) return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendGetAttribute");
  clear(config);
  bool stored =
      store(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, operation_graph->data) &&
      store(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
  engine->finalised = true;
  stored = stored && store(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
  config->finalised = true;
  release(engine);  // the configuration holds it now
  return stored ? CUDNN_STATUS_SUCCESS
                : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendGetAttribute");
}

// Answers that are not stored: `value` is the only element, or the list is empty.
typedef struct answer {
  int name, type;
  int64_t count, value;
} answer;
static const answer *computed_answer(const descriptor *self, int name, answer *scratch) {
  static const answer fixed[] = {
      {CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, 0},
      {CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32, 1, 49152},
      {CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS, CUDNN_TYPE_INT64, 0, 0},
      {CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINE_LAYOUT_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, 0, 0},
      {CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED, CUDNN_TYPE_BOOLEAN, 1, 0},
  };
  if (name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) {
    *scratch = (answer){name, CUDNN_TYPE_INT64, 1, engine_indices(self)};
    return scratch;
  }
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    graph g = graph_of(child(self, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
    bool noted = on_tensor_cores(&g, integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
    *scratch = (answer){name, CUDNN_TYPE_NUMERICAL_NOTE, noted, CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
    return scratch;
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *scratch = (answer){name, CUDNN_TYPE_INT64, 1, self->plan ? self->plan->workspace : 0};
    return scratch;
  }
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (fixed[i].name == name) return &fixed[i];
  return NULL;
}

static int get_attribute(const descriptor *self, int name, int type, int64_t requested, int64_t *count,
                         void *elements) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: not a descriptor");
  const kind *k = kind_of(self->type);
  if (!self->finalised)
    return fail(CUDNN_STATUS_NOT_INITIALIZED, "cudnnBackendGetAttribute: %s is not finalised", k->name);
  if (name < k->low || name > k->high)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: %s has no attribute %d", k->name, name);
  if (requested < 0)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: %lld elements asked for", (long long)requested);
  if (self->type == CUDNN_BACKEND_ENGINEHEUR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
      return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendGetAttribute: type %d of %d", type, name);
    int64_t offered = engine_count(child(self, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    if (count) *count = elements && requested < offered ? requested : offered;
    for (int64_t i = 0; elements && i < requested && i < offered; i++) {
      int status = fill_configuration(((descriptor **)elements)[i], self, i);
      if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
  }
  const entry *e = find(self, name);
  if (!e) {
    answer scratch;
    const answer *computed = computed_answer(self, name, &scratch);
    if (!computed)
      return fail(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendGetAttribute: attribute %d of %s is not set", name, k->name);
    if (computed->type != type)
      return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendGetAttribute: type %d of %d", type, name);
    if (count) *count = computed->count;
    if (elements && requested > 0 && computed->count) memcpy(elements, &computed->value, element_size(type));
    return CUDNN_STATUS_SUCCESS;
  }
  if (e->type != type)
    return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendGetAttribute: type %d of %d", type, name);
  if (count) *count = e->count;
  int64_t copied = requested < e->count ? requested : e->count;
  if (!elements) return CUDNN_STATUS_SUCCESS;
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    memcpy(elements, e->data, (size_t)copied * element_size(type));
    return CUDNN_STATUS_SUCCESS;
  }
  for (int64_t i = 0; i < copied; i++) {
    descriptor *to = ((descriptor **)elements)[i];
    const descriptor *from = ((descriptor **)e->data)[i];
    if (!is_descriptor(to) || !from || to->type != from->type)
      return fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                  "cudnnBackendGetAttribute: element %lld of %d does not take a descriptor", (long long)i, name);
    if (to != from && !copy_into(to, from))
      return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendGetAttribute");
  }
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnBackendGetAttribute(const descriptor *self, int name, int type, int64_t requested, int64_t *count,
                                       void *elements) {
  return PH_BRACKET(get_attribute(self, name, type, requested, count, elements));
}

static int execute(const handle *self, const descriptor *plan, const descriptor *pack) {
  CHECK_HANDLE(self);
  if (!is_descriptor(plan) || plan->type != CUDNN_BACKEND_EXECUTION_PLAN || !is_descriptor(pack) ||
      pack->type != CUDNN_BACKEND_VARIANT_PACK)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendExecute: needs an EXECUTION_PLAN and a VARIANT_PACK");
  if (!plan->finalised || !pack->finalised)
    return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "cudnnBackendExecute: plan or pack is not finalised");
  const entry *uids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
              *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (int i = 0; i < plan->plan->outputs; i++) {
    int64_t at = 0;
    while (at < uids->count && ((const int64_t *)uids->data)[at] != plan->plan->output[i].uid) at++;
    if (at == uids->count)
      return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendExecute: no pointer for tensor %lld, which the plan writes",
                  (long long)plan->plan->output[i].uid);
  }
  int status = launch(self, &plan->plan->call);
  if (status == CUDNN_STATUS_SUCCESS && plan->plan->converts) ph_charge(PH_API_CUDNN_CONVERT);
  if (status == CUDNN_STATUS_SUCCESS && plan->plan->largest) status = launch(self, &plan->plan->call);
  for (int i = 0; status == CUDNN_STATUS_SUCCESS && i < plan->plan->outputs; i++)
    for (int64_t at = 0; at < uids->count; at++)
      if (((const int64_t *)uids->data)[at] == plan->plan->output[i].uid)
        ph_wrote_output(((void **)pointers->data)[at], plan->plan->output[i].bytes);
  return status;
}
PH_EXPORT int cudnnBackendExecute(handle *self, descriptor *plan, descriptor *pack) {
  return PH_BRACKET(execute(self, plan, pack));
}
