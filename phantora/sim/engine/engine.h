// Interface of the simulator's core (core*.cpp) to Python (phantora/sim/core.py, ctypes).
#pragma once
#include <stdint.h>

#include "phantora_wire.h"

enum phc_reason {           // why phc_run returned; bits
  PHC_IDLE = 0,             // nothing moved within the timeout
  PHC_PRICES = 1,           // phc_next_price has requests
  PHC_ROWS = 2,             // many rows wait for phc_take_rows
  PHC_DONE = 4,             // every rank has exited and all their work is done
  PHC_ERROR = 8,            // phc_error has a text
  PHC_MOVED = 16,           // something was consumed or answered
};
enum phc_price_kind { PHC_OPERATOR, PHC_KERNEL, PHC_COPY, PHC_MEMSET, PHC_COLLECTIVE, PHC_TRANSFER };

typedef struct phc_price_request {
  int32_t id;          // price id
  int32_t kind;        // enum phc_price_kind
  int32_t sig;         // OPERATOR: global signature
  int32_t kernels;     // OPERATOR, KERNEL: number of launches
  int32_t sub;         // COPY: enum ph_copy; COLLECTIVE: enum ph_coll
  int32_t part;        // OPERATOR: 0, or k for the k-th piece of an operator cut by a wait
  int32_t comm;        // COLLECTIVE, TRANSFER: core's communicator index
  int32_t dtype, redop, root;
  int32_t src, dst;    // TRANSFER: global ranks
  int32_t concurrent;  // TRANSFER: transfers that share the sender's or the receiver's port
  int32_t duplex;      // TRANSFER: both sides also move data the other way in the same launch
  int64_t bytes;
} phc_price_request;

typedef struct phc_price_kernel {
  int32_t name;        // global name
  int32_t library;     // 1: the name is the JSON description of a library call
  uint64_t grid, block, smem;
} phc_price_kernel;

typedef struct phc_flow {  // `count` equal flows of a collective or transfer
  int32_t src, dst;        // GPUs (ranks), -1: several
  int32_t hops, count;     // links on the way
  int32_t name;            // global name of the way
  int32_t pad;
  double bytes, rate;      // of each flow; bytes/s that it never exceeds
} phc_flow;

typedef struct phc_nature {  // what a kernel does to the GPU, and the GPU to it
  double company;  // it takes so many times as long beside a communication kernel,
  double after;    // and beside one that was on the GPU first
  double dynamic;  // W drawn at full clock that fall with the clock
  double steady;   // and that do not
  double clock;    // share of the full clock that the duration holds for
  double bound;    // share of the duration that goes with the clock
  double takes;    // of a kernel: share of its pace that communication beside it loses; of communication: how much of that it feels
} phc_nature;

typedef struct phc_status {
  int64_t final_time;  // nothing earlier can change
  int64_t records;     // consumed so far
  int64_t rows;        // waiting to be taken
  int64_t late;        // launches that came after their GPU's time
  int32_t alive, blocked, exited, steps;
  int64_t overtakes;   // times that ranks asleep outside CUDA were moved forward
  int64_t device_peak; // most bytes that a rank that has ended took of a device
} phc_status;
