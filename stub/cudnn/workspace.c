// What was measured on the simulated GPU (a table in the shared memory, phantora/cost/workspaces.py) is answered as it
// was; for another batch the nearest one's bytes, where converted tensors grow with the batch and all else stays. Else
// a rule that holds for most of what was measured: cuDNN's kernels want channels last, and convert what lies otherwise.
#include "cudnn/workspace.h"

#define ALIGNMENT_SLACK 16  // plans that convert ask for so much, or 147 bytes, to align what they convert

// The same numbers in the same order as key() of phantora/wire/workspaces.py.
static uint64_t mixed(uint64_t key, const int64_t *words, int count) {
  for (int i = 0; i < count; i++) {
    key = (key ^ (uint64_t)words[i]) * PH_GOLDEN;
    key ^= key >> 29;
  }
  return key;
}

static uint64_t key_of(const convolution_problem *p) {
  int spatial = p->dims - 2;
  uint64_t key = mixed(0, (const int64_t[]){p->form, p->type, p->layout, p->dims}, 4);
  key = mixed(key, p->x + 1, p->dims - 1);
  key = mixed(key, p->w, p->dims);
  key = mixed(key, p->stride, spatial);
  key = mixed(key, p->padding, spatial);
  return mixed(key, p->dilation, spatial);
}

// The convolution's measured batches, in rising order.
typedef struct batches {
  const ph_workspace *first, *end;
} batches;

static batches measured(const convolution_problem *p) {
  const ph_header *shared = ph_shared();
  if (!shared || !shared->workspace_count || p->type == CONV_OTHER_TYPE || p->dims < 3) return (batches){NULL, NULL};
  const ph_workspace *all = (const ph_workspace *)((const char *)shared + shared->workspace_offset);
  uint64_t key = key_of(p);
  size_t low = 0, high = shared->workspace_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (all[middle].key < key)
      low = middle + 1;
    else
      high = middle;
  }
  batches found = {all + low, all + low};
  while (found.end < all + shared->workspace_count && found.end->key == key) found.end++;
  return found;
}

static double apart(int64_t a, int64_t b) { return a > b ? (double)a / (double)b : (double)b / (double)a; }

// The measured one, as the usual plan or as the largest, with the batch nearest to `batch`, but for `except`.
static const ph_workspace *nearest(batches of, int64_t batch, bool largest, const ph_workspace *except) {
  const ph_workspace *found = NULL;
  for (const ph_workspace *m = of.first; m < of.end; m++)
    if (m != except && (largest ? m->largest : m->usual) >= 0 &&
        (!found || apart(m->batch, batch) < apart(found->batch, batch)))
      found = m;
  return found;
}

static int64_t product_of(const int64_t *values, int count) {
  int64_t product = 1;
  for (int i = 0; i < count; i++) product *= values[i];
  return product;
}

static int64_t float_filters(const convolution_problem *p) {
  return product_of(p->w, p->dims) * (int64_t)sizeof(float);
}

static bool about(int64_t a, int64_t b) { return a - b < 2048 && b - a < 2048; }

// Bytes that `m` asked for, with its batch exchanged for the problem's.
static int64_t for_batch(const convolution_problem *p, const ph_workspace *m) {
  int64_t bytes = m->usual;
  int64_t x = p->x_bytes / p->x[0] * m->batch, y = p->y_bytes / p->y[0] * m->batch;  // of the measured batch
  if (bytes >= x + y) return bytes - x - y + p->x_bytes + p->y_bytes;
  if (p->form == PH_CONV_FWD && about(bytes, x + p->w_bytes)) return bytes - x + p->x_bytes;
  if (p->form == PH_CONV_DGRAD && about(bytes, y + p->w_bytes)) return bytes - y + p->y_bytes;
  if (p->form == PH_CONV_WGRAD && about(bytes, m->batch * float_filters(p))) return p->x[0] * float_filters(p);
  return bytes;
}

static bool all_ones(const int64_t *values, int count) {
  for (int i = 0; i < count; i++)
    if (values[i] != 1) return false;
  return true;
}

// Bytes of a convolution's tensors as kernels with tensor cores take them: rows of channels are padded to 16 bytes, but
// not those of groups. So 130 of 219 measured convolutions with other channels come out within 2 %, and 40 without
// padding.
typedef struct converted {
  int64_t x, y, w;
  bool x_padded, y_padded;
} converted;

static int64_t padded(int64_t bytes, int64_t channels, int64_t row) {
  return bytes / channels * ((channels + row - 1) / row * row);
}

static int64_t element_bytes(const convolution_problem *p) { return p->type == PH_CONV_TF32 ? 4 : 2; }

static converted convert(const convolution_problem *p) {
  bool grouped = p->w[1] != p->x[1];
  int64_t row = grouped ? 1 : 16 / element_bytes(p), channels = p->x[1], filters = p->y[1];
  return (converted){.x = padded(p->x_bytes, channels, row),
                     .y = padded(p->y_bytes, filters, row),
                     .w = padded(padded(p->w_bytes, filters, row), p->w[1], row),
                     .x_padded = channels % row != 0,
                     .y_padded = filters % row != 0};
}

// Gradients of filters sum over all positions, in parts where these are many: at most a tile of sums on each SM.
#define PART_POSITIONS 4096
#define MOST_PARTS 13
#define MOST_SUMS (132LL * 128 * 128 * (int64_t)sizeof(float))
static int64_t partial_sums(const convolution_problem *p) {
  if (p->form != PH_CONV_WGRAD) return 0;
  int64_t parts = p->y[0] * product_of(p->y + 2, p->dims - 2) / PART_POSITIONS;
  int64_t sums = (parts < MOST_PARTS ? parts : MOST_PARTS) * float_filters(p);
  return sums < MOST_SUMS ? sums : MOST_SUMS;
}

// Filters of one tap without stride are plain products of each image's pixels with the filters, for any layout, if rows
// of pixels are aligned to 16 bytes. Gradients of the filters are summed over the images afterwards, unless those of
// all images take more than both tensors, which are then converted. Of 351 measured ones 12 are more than 10 % off.
#define FEW_IMAGES 64
#define MOST_OF_TENSORS 2.2
static int64_t product_workspace(const convolution_problem *p, const converted *as) {
  bool sums = p->form == PH_CONV_WGRAD;
  if (p->layout == PH_CONV_NHWC) return 0;
  if (sums && p->dims == 5) return (p->type == PH_CONV_TF32 ? 1 : 2) * (p->x_bytes + p->y_bytes);
  if (p->x_bytes / p->x[0] / p->x[1] % 16) return as->x + as->y + ALIGNMENT_SLACK;
  int64_t of_images = sums && p->x[0] > 1 ? p->x[0] * float_filters(p) : 0;
  double share = (double)of_images / (double)(as->x + as->y);
  if (share <= (p->x[0] <= FEW_IMAGES ? MOST_OF_TENSORS : 1.0)) return of_images;
  return as->x + as->y + ALIGNMENT_SLACK + partial_sums(p);
}

// Channels that are last stay where they are, but for padding. TF32 rounds what large filters multiply.
static int64_t last_workspace(const convolution_problem *p, const converted *as, int64_t taps) {
  bool sums = p->form == PH_CONV_WGRAD, rounded = p->type == PH_CONV_TF32 && taps > (sums ? 9 : 27);
  if (rounded) return as->w + (p->form != PH_CONV_DGRAD) * as->x + (p->form != PH_CONV_FWD) * as->y + partial_sums(p);
  if (sums) return partial_sums(p);
  return as->x_padded * as->x + as->y_padded * as->y + (as->x_padded || as->y_padded) * as->w;
}

// Gradients of few filters of 3 x 3 on small images are products of Fourier transforms: so are all five measured ones
// within these limits, and none of 110 others (families/convolution/transforms.py prices them).
#define TRANSFORM_IMAGE 32
#define TRANSFORM_CHANNELS 256
#define TRANSFORM_FILTERS 64
#define TRANSFORM_BATCH 48
#define TRANSFORM_PRODUCTS 600e6
static bool transforms(const convolution_problem *p, int64_t taps) {
  if (p->form != PH_CONV_WGRAD || p->type != PH_CONV_TF32 || p->dims != 4 || p->w[1] != p->x[1] || taps != 9)
    return false;
  bool small = p->x[2] == p->y[2] && p->x[3] == p->y[3] && p->x[2] <= TRANSFORM_IMAGE && p->x[3] <= TRANSFORM_IMAGE;
  bool few = p->x[1] <= TRANSFORM_CHANNELS && p->y[1] <= TRANSFORM_FILTERS && p->x[0] >= TRANSFORM_BATCH;
  double products = (double)p->y[0] * (double)product_of(p->y + 2, 2) * (double)product_of(p->w, 4);
  return small && few && all_ones(p->stride, 2) && all_ones(p->dilation, 2) && products >= TRANSFORM_PRODUCTS;
}

// Complex halves of planes, in two copies, and the results' gradient as it is read.
static int64_t transform_workspace(const convolution_problem *p) {
  int64_t side = 16, rows = p->x[2] + p->w[2] - 1, columns = p->x[3] + p->w[3] - 1;
  while (side < (rows > columns ? rows : columns)) side *= 2;
  return p->x[0] * (p->x[1] + p->y[1]) * side * (side / 2 + 1) * 16 + p->y_bytes;
}

// Gradients of 3 x 3 filters without tensor cores take Winograd's transforms of 4 x 4 results, 6 x 6 values each. Most
// others take tensors as they lie.
static int64_t single_precision(const convolution_problem *p) {
  if (p->form != PH_CONV_WGRAD || p->layout == PH_CONV_NHWC || p->dims != 4 || p->w[2] != 3 || p->w[3] != 3) return 0;
  if (!all_ones(p->stride, 2) || !all_ones(p->dilation, 2)) return 0;
  int64_t tiles = p->x[0] * ((p->y[2] + 3) / 4) * ((p->y[3] + 3) / 4);
  return 36 * (int64_t)sizeof(float) * (tiles * (p->x[1] + p->y[1]) + p->w[0] * p->w[1]);
}

// Kernels for few channels, or without tensor cores, take tensors as they lie.
static bool direct(const convolution_problem *p, int64_t taps) {
  bool tf32 = p->type == PH_CONV_TF32, image = p->dims == 4;
  if (p->form == PH_CONV_DGRAD) return tf32 && (p->x[1] <= 12 || taps >= 64);
  bool small = p->x[1] <= 3 && p->w[p->dims - 1] < 7;
  return small && (p->form == PH_CONV_FWD || (tf32 && image));
}

// Kernels want channels last, and convert what lies otherwise. On average this is 14 % of the tensors' bytes off for
// 993 random convolutions that were not looked at, 10 % for 361 of sequences, and 6 % for 7,365 of networks.
static int64_t by_rule(const convolution_problem *p) {
  bool grouped = p->w[1] != p->x[1], depthwise = grouped && p->w[1] == 1;
  if (depthwise) return 0;
  if (p->type == PH_CONV_F32 || p->type == CONV_OTHER_TYPE) return single_precision(p);
  converted as = convert(p);
  int64_t taps = product_of(p->w + 2, p->dims - 2);
  if (taps == 1 && all_ones(p->stride, p->dims - 2)) return product_workspace(p, &as);
  if (taps == 1) as.w = 0;
  if (p->layout == PH_CONV_NHWC) return last_workspace(p, &as, taps);
  if (transforms(p, taps)) return transform_workspace(p);
  if (!grouped && direct(p, taps)) return 0;
  return as.x + as.y + as.w + ALIGNMENT_SLACK + (taps > 1) * partial_sums(p);
}

// Plans that multiply Fourier transforms ask for most where they are offered: in single precision, for dense filters of
// one group without dilation that are larger than the padding. Of 1,345 such convolutions of random sizes on an H200
// (validation/measurements/2026-11-28-h200/convolution_plans.parquet) 79 % are offered one; of those with a stride of 1
// 98 % ask for these bytes to 2 %, of strided gradients of inputs 56 %, 76 % to 10 %.
#define COMPLEX_BYTES 8
#define LEAST_SIDE 16
#define MOST_SIDE 256

static bool transforms_offered(const convolution_problem *p) {
  if ((p->type != PH_CONV_TF32 && p->type != PH_CONV_F32) || p->dims != 4 || p->w[1] != p->x[1]) return false;
  if (!all_ones(p->dilation, 2)) return false;
  for (int i = 0; i < 2; i++)
    if (p->padding[i] >= p->w[i + 2]) return false;
  return true;
}

// Whole images: both operands and then the results lie in two orders, in sides of a power of two. The second operand is
// copied before.
static int64_t whole_transforms(const convolution_problem *p, int64_t x, int64_t w, int64_t y) {
  if (!all_ones(p->stride, 2)) return 0;
  int64_t side = LEAST_SIDE, needed = 0;
  for (int i = 2; i < 4; i++)
    if (p->x[i] + 2 * p->padding[i - 2] > needed) needed = p->x[i] + 2 * p->padding[i - 2];
  while (side < needed) side *= 2;
  if (side > MOST_SIDE) return 0;
  bool forward = p->form == PH_CONV_FWD;
  int64_t in = x + (forward ? w : y), out = forward ? y : w;
  return 2 * (in > out ? in : out) * side * (side / 2 + 1) * COMPLEX_BYTES + (forward ? p->w_bytes : p->y_bytes);
}

// Gradients of inputs, in tiles of 32 x 32, of which two are kept where an image is larger. With a stride each phase is
// a convolution of its own, whose operands are gathered before.
#define TILE 32
#define TILE_BYTES (TILE * (TILE / 2 + 1) * COMPLEX_BYTES)
static int64_t tiled_transforms(const convolution_problem *p, int64_t x, int64_t w, int64_t y) {
  int64_t taps = p->w[2] * p->w[3], phases = p->stride[0] * p->stride[1], largest = 0;
  if (taps == 1 || p->w[2] > TILE || p->w[3] > TILE || p->x[2] == 1) return 0;
  int64_t images = 1, filters = 1, results = 1;  // elements of a phase
  for (int i = 0; i < 2; i++) {
    int64_t image = (p->x[i + 2] + p->stride[i] - 1) / p->stride[i];
    int64_t filter = (p->w[i + 2] + p->stride[i] - 1) / p->stride[i], padded = image + filter - 1;
    images *= image, filters *= filter, results *= padded;
    if (padded > largest) largest = padded;
  }
  int64_t tiles = largest > TILE ? 2 : 1;
  int64_t bytes = TILE_BYTES * (phases * tiles * x + phases * w + tiles * y);
  if (phases == 1) return bytes;
  return bytes + (int64_t)sizeof(float) * (phases * (x * images + w * filters) + y * results);
}

static int64_t transforms_tried(const convolution_problem *p) {
  if (!transforms_offered(p)) return 0;
  int64_t x = p->x[0] * p->x[1], w = p->w[0] * p->w[1], y = p->x[0] * p->w[0];  // planes
  int64_t bytes = p->form == PH_CONV_DGRAD ? tiled_transforms(p, x, w, y) : whole_transforms(p, x, w, y);
  return bytes && p->layout == PH_CONV_NHWC ? bytes + p->x_bytes + p->w_bytes + p->y_bytes : bytes;
}

// The largest plans in single precision use no tensor cores, so that they are the same with TF32 and without; float16,
// channels last, was not measured and counts as bfloat16. They keep something for each image and something for the
// filters, so two measured batches give any other.
static int64_t largest_workspace(const convolution_problem *problem) {
  convolution_problem p = *problem;
  if (p.type == PH_CONV_F32) p.type = PH_CONV_TF32;
  if (p.type == PH_CONV_F16 && p.layout == PH_CONV_NHWC) p.type = PH_CONV_BF16;
  batches of = measured(&p);
  const ph_workspace *one = nearest(of, p.x[0], true, NULL);
  if (one && one->batch == p.x[0]) return one->largest;
  const ph_workspace *other = one ? nearest(of, p.x[0], true, one) : NULL;
  if (!other) return one ? one->largest : transforms_tried(&p);
  double each = (double)(other->largest - one->largest) / (double)(other->batch - one->batch);
  return one->largest + (int64_t)(each * (double)(p.x[0] - one->batch));
}

int64_t convolution_workspace(const convolution_problem *p, bool largest) {
  const ph_workspace *m = nearest(measured(p), p->x[0], false, NULL);
  int64_t usual = m ? for_batch(p, m) : by_rule(p);
  int64_t most = largest ? largest_workspace(p) : 0;
  return most > usual ? most : usual;
}
