// A small hash table from addresses to objects; thread safe.
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

typedef struct phc_table phc_table;
void phc_table_set(phc_table **table, uintptr_t key, void *value);  // NULL value removes
void *phc_table_get(phc_table *const *table, uintptr_t key);
void phc_table_each(phc_table *const *table, void (*visit)(uintptr_t key, void *value, void *data), void *data);

#pragma GCC visibility pop
