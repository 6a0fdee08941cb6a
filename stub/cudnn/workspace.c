// What was measured on H100 and H200 (cudnn_workspaces.h) is answered as it was; for another batch the nearest one's
// bytes, where converted tensors grow with the batch and all else stays. Else a rule that holds for most of what was
// measured: cuDNN's kernels want channels last, and convert what lies otherwise.
#include "cudnn/workspace.h"

#define ALIGNMENT_SLACK 16  // plans that convert ask for so much, or 147 bytes, to align what they convert

// A square convolution without dilation and groups.
typedef struct measured_plan {
  uint8_t form, type, layout;
  int16_t batch, channels, size, filters, taps, stride, padding;
  int64_t h100, h200;
} measured_plan;
#define PLAN(form, type, layout, batch, channels, size, filters, taps, stride, padding, h100, h200) \
  {FORM_##form, TYPE_##type, LAYOUT_##layout, batch, channels, size, filters, taps, stride, padding, h100, h200},
static const measured_plan measured_plans[] = {
#include "cudnn/cudnn_workspaces.h"
};
// The largest workspace of all plans that cudnn.benchmark tries.
static const measured_plan largest_plans[] = {
#include "cudnn/cudnn_tried.h"
};
#undef PLAN

static bool all_equal(const int64_t *values, int count, int64_t value) {
  for (int i = 0; i < count; i++)
    if (values[i] != value) return false;
  return true;
}

// Alike but for the batch.
static bool like(const convolution_problem *p, const measured_plan *m) {
  int spatial = p->dims - 2;
  return m->form == p->form && m->type == p->type && m->layout == p->layout && m->channels == p->x[1] &&
         m->filters == p->w[0] && all_equal(p->x + 2, spatial, m->size) && all_equal(p->w + 2, spatial, m->taps) &&
         all_equal(p->stride, spatial, m->stride) && all_equal(p->padding, spatial, m->padding) &&
         all_equal(p->dilation, spatial, 1);
}

static double apart(int64_t a, int64_t b) { return a > b ? (double)a / (double)b : (double)b / (double)a; }

static bool about(int64_t a, int64_t b) { return a - b < 2048 && b - a < 2048; }

// What `m` asked for, with its batch exchanged for the problem's.
static int64_t for_batch(const convolution_problem *p, const measured_plan *m) {
  int64_t bytes = strstr(ph_gpu()->name, "H200") ? m->h200 : m->h100;
  int64_t x = p->x_bytes / p->x[0] * m->batch, y = p->y_bytes / p->y[0] * m->batch;  // of the measured batch
  if (bytes >= x + y) return bytes - x - y + p->x_bytes + p->y_bytes;
  if (p->form == FORM_fwd && about(bytes, x + p->w_bytes)) return bytes - x + p->x_bytes;
  if (p->form == FORM_dgrad && about(bytes, y + p->w_bytes)) return bytes - y + p->y_bytes;
  return bytes;
}

// Most gradients without tensor cores take tensors as they lie. Filters of one tap without stride are plain products of each image's pixels with the filters, for any layout, if
// rows of pixels are aligned to 16 bytes.
static int64_t by_rule(const convolution_problem *p) {
  int spatial = p->dims - 2;
  if (p->layout == LAYOUT_nhwc || (p->type == TYPE_f32 && p->form != FORM_fwd)) return 0;
  int64_t converted = p->x_bytes + p->y_bytes + ALIGNMENT_SLACK;
  if (!all_equal(p->w + 2, spatial, 1)) return converted + p->w_bytes;
  if (!all_equal(p->stride, spatial, 1)) return converted;
  int64_t channel_bytes = p->x_bytes / p->x[0] / p->x[1];
  return channel_bytes % 16 ? converted : 0;
}

// Of `count` measured plans the one with the batch nearest to the problem's, but for `except`.
static const measured_plan *nearest_of(const measured_plan *plans, size_t count, const convolution_problem *p,
                                       const measured_plan *except) {
  const measured_plan *nearest = NULL;
  bool hopper = ph_gpu()->major == 9, plain = p->dims == 4 && p->x[1] == p->w[1] && p->type != TYPE_other;
  for (const measured_plan *m = plans; hopper && plain && m < plans + count; m++)
    if (m != except && like(p, m) && (!nearest || apart(m->batch, p->x[0]) < apart(nearest->batch, p->x[0])))
      nearest = m;
  return nearest;
}

// The largest plans in single precision use no tensor cores, so that they are the same with TF32 and without; float16,
// channels last, was not measured and counts as bfloat16. They keep something for each image and something for the
// filters, so two measured batches give any other.
static int64_t largest_workspace(const convolution_problem *problem) {
  enum { COUNT = sizeof largest_plans / sizeof *largest_plans };
  convolution_problem p = *problem;
  if (p.type == TYPE_f32) p.type = TYPE_tf32;
  if (p.type == TYPE_f16 && p.layout == LAYOUT_nhwc) p.type = TYPE_bf16;
  const measured_plan *one = nearest_of(largest_plans, COUNT, &p, NULL);
  const measured_plan *other = one ? nearest_of(largest_plans, COUNT, &p, one) : NULL;
  if (!other) return one ? one->h100 : 0;
  double each = (double)(other->h100 - one->h100) / (double)(other->batch - one->batch);
  return one->h100 + (int64_t)(each * (double)(p.x[0] - one->batch));
}

int64_t convolution_workspace(const convolution_problem *p, bool largest) {
  const measured_plan *nearest = nearest_of(measured_plans, sizeof measured_plans / sizeof *measured_plans, p, NULL);
  int64_t usual = nearest ? for_batch(p, nearest) : by_rule(p);
  int64_t most = largest ? largest_workspace(p) : 0;
  return most > usual ? most : usual;
}
