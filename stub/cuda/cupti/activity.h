// CUPTI's activity records, filled with what was simulated.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "abi/cupti_abi.h"

#define CUPTI_EXTERNAL_KINDS 8

typedef void cupti_request(uint8_t **buffer, size_t *size, size_t *records);
typedef void cupti_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t used);

void cupti_callbacks(cupti_request *request, cupti_complete *complete);
void cupti_enable(int kind, bool on);
void cupti_flush(void);  // hands over what is known so far
cupti_record *cupti_next(uint8_t *buffer, size_t bytes, cupti_record *before);  // NULL: no more
const char *cupti_name(int32_t name);     // of an activity; kept
const char *cupti_function_name(
    uint32_t id);  // of a function of the runtime, as CUPTI writes it; NULL: none of those that are recorded
uint64_t cupti_external_id(int kind);     // on top of this thread's stack, 0: none
