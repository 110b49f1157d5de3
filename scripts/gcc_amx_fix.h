// Included before every source of ggml when scripts/setup.sh builds it with an old GCC.
//
// GCC before 14 (and before 13.3 and 12.4) declares that _tile_loadconfig() reads 8 bytes where it
// reads 64, and that _tile_loadd() reads no memory at all (GCC bug 114098). The optimiser then
// removes the stores that fill the tile configuration, and the first tile instruction dies with
// SIGILL. These definitions name the memory. They are harmless with a repaired compiler.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

static inline void karez_tile_loadconfig(const void* config) {
  __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const char(*)[64])config) : "memory");
}
#define _tile_loadconfig karez_tile_loadconfig

#undef _tile_loadd
#define _tile_loadd(dst, base, stride) karez_tile_loadd_(dst, base, stride)
#define karez_tile_loadd_(dst, base, stride)                                      \
  __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #dst ::"r"((const void*)(base)), \
                   "r"((long)(stride))                                            \
                   : "memory")
#endif
