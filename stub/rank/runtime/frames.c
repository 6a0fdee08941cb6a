// Operators: the frames that the tracer keeps, and which of them a record belongs to.
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

static _Atomic uint32_t last_instance;

static const ph_order *_Atomic order;
void ph_order_by(const ph_order *by) { atomic_store(&order, by); }
const ph_order *ph_ordered(void) { return atomic_load_explicit(&order, memory_order_relaxed); }

static void put_in_order(const ph_order *by, ph_frame *frame, uint32_t stream) {
  uint64_t at = by->launched(stream);
  if (!frame) return;
  frame->mixed = frame->mixed || (frame->launches && frame->stream != stream);
  frame->stream = stream;
  frame->order = at;
}

void ph_push_frame(ph_frame *frame) {
  frame->parent = ph_self.frame;
  ph_self.frame = frame;
}

void ph_pop_frame(ph_frame *frame) { ph_self.frame = frame->parent; }
ph_frame *ph_top_frame(void) { return ph_self.frame; }
uint32_t ph_next_instance(void) { return atomic_fetch_add(&last_instance, 1) + 1; }

void ph_attribute(ph_record *record) {
  ph_frame *frame = ph_self.frame;
  record->op = 0;
  const ph_order *by = ph_ordered();
  if (by) put_in_order(by, frame, record->stream);
  if (!frame) return;
  frame->launches++;
  if (record->kind == PH_KERNEL) frame->kernels++;
  if (!frame->instance && frame->begin && ph_recording()) frame->begin(frame);
  record->op = frame->instance;
}

bool ph_operator_open(void) {
  for (const ph_frame *frame = ph_self.frame; frame; frame = frame->parent)
    if (frame->instance) return true;
  return false;
}

static uint32_t (*_Atomic site)(void);
void ph_site_by(uint32_t (*find)(void)) { atomic_store(&site, find); }
uint32_t ph_site(void) {
  uint32_t (*ask)(void) = atomic_load(&site);
  return ask && ph_recording() && ph_moves_clock() ? ask() : 0;
}
