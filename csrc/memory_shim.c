// Counts the bytes that torch's CPU allocator hands out, exactly and on every thread.
//
// Load this library globally (RTLD_GLOBAL) BEFORE torch: it then stands in front of libc10's
// c10::ProfiledCPUMemoryReporter::New and ::Delete, which the allocator calls for every block, notes the size and
// passes the call on. It needs no torch headers and does not link torch. The two names are mangled C++ and no stable
// interface, so the user of this library must test it on an allocation of known size and do without when it is blind.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

// ---- sizes by address: shards of open-addressing tables that double when three quarters full ----

enum { SHARDS = 64, FIRST_CAPACITY = 256 };

typedef struct {
  uintptr_t address;  // 0: free
  size_t bytes;
} Entry;

typedef struct {
  pthread_mutex_t lock;
  Entry* entries;
  size_t capacity;  // a power of two
  size_t used;
} Shard;

static Shard shards[SHARDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t hash(uintptr_t address) { return (uint64_t)address * 0x9E3779B97F4A7C15ull; }

static Shard* shard_of(uintptr_t address) { return &shards[hash(address) >> 58]; }

static size_t home(const Shard* shard, uintptr_t address) { return (hash(address) >> 20) & (shard->capacity - 1); }

static size_t find(const Shard* shard, uintptr_t address) {
  size_t slot = home(shard, address);
  while (shard->entries[slot].address != 0 && shard->entries[slot].address != address)
    slot = (slot + 1) & (shard->capacity - 1);
  return slot;
}

static int grow(Shard* shard) {
  const Shard old = *shard;
  const size_t capacity = old.capacity ? 2 * old.capacity : FIRST_CAPACITY;
  Entry* entries = calloc(capacity, sizeof(Entry));
  if (!entries) return 0;
  shard->entries = entries;
  shard->capacity = capacity;
  for (size_t i = 0; i < old.capacity; i++)
    if (old.entries[i].address) entries[find(shard, old.entries[i].address)] = old.entries[i];
  free(old.entries);
  return 1;
}

// Notes `bytes` at `address`; returns the size noted there before, 0 if none, or `bytes` if there is no memory to note.
static size_t put(uintptr_t address, size_t bytes) {
  Shard* shard = shard_of(address);
  size_t previous = bytes;
  pthread_mutex_lock(&shard->lock);
  if (4 * (shard->used + 1) <= 3 * shard->capacity || grow(shard)) {
    Entry* entry = &shard->entries[find(shard, address)];
    previous = entry->address ? entry->bytes : 0;
    shard->used += entry->address == 0;
    *entry = (Entry){address, bytes};
  }
  pthread_mutex_unlock(&shard->lock);
  return previous;
}

// Forgets `address` and returns its size; 0 if it was never noted. Later entries move up so that no gap hides them.
static size_t take(uintptr_t address) {
  Shard* shard = shard_of(address);
  size_t bytes = 0;
  pthread_mutex_lock(&shard->lock);
  if (shard->capacity) {
    const size_t mask = shard->capacity - 1;
    size_t gap = find(shard, address);
    if (shard->entries[gap].address) {
      bytes = shard->entries[gap].bytes;
      shard->used--;
      for (size_t next = (gap + 1) & mask; shard->entries[next].address; next = (next + 1) & mask) {
        const size_t wanted = home(shard, shard->entries[next].address);
        if (((next - wanted) & mask) < ((next - gap) & mask)) continue;
        shard->entries[gap] = shard->entries[next];
        gap = next;
      }
      shard->entries[gap].address = 0;
    }
  }
  pthread_mutex_unlock(&shard->lock);
  return bytes;
}

// A fork while another thread holds a lock would leave the child waiting for ever, so a fork takes them all.
static void lock_all(void) {
  for (int i = 0; i < SHARDS; i++) pthread_mutex_lock(&shards[i].lock);
}

static void unlock_all(void) {
  for (int i = SHARDS - 1; i >= 0; i--) pthread_mutex_unlock(&shards[i].lock);
}

static void initialise(void) {
  for (int i = 0; i < SHARDS; i++) pthread_mutex_init(&shards[i].lock, NULL);
  pthread_atfork(lock_all, unlock_all, unlock_all);
}

// ---- counters ----

static _Atomic int64_t live_bytes, peak_bytes, allocations;

static void change_live(int64_t difference) {
  const int64_t live = atomic_fetch_add(&live_bytes, difference) + difference;
  int64_t peak = atomic_load(&peak_bytes);
  while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live)) {
  }
}

EXPORT int64_t zbench_memory_live_bytes(void) { return atomic_load(&live_bytes); }
EXPORT int64_t zbench_memory_peak_bytes(void) { return atomic_load(&peak_bytes); }
EXPORT int64_t zbench_memory_allocations(void) { return atomic_load(&allocations); }

// From here on the peak is the most that is live at once; call it while no other thread allocates.
EXPORT void zbench_memory_reset_peak(void) { atomic_store(&peak_bytes, atomic_load(&live_bytes)); }

// ---- c10::ProfiledCPUMemoryReporter ----

#define NEW _ZN3c1025ProfiledCPUMemoryReporter3NewEPvm
#define DELETE _ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv
#define NAME_OF_(symbol) #symbol
#define NAME_OF(symbol) NAME_OF_(symbol)

// Python loads torch's libraries privately (RTLD_LOCAL), where RTLD_NEXT does not look: ask libc10 itself.
static void* in_libc10(const char* name) {
  void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
  return library ? dlsym(library, name) : NULL;
}

EXPORT void NEW(void* self, void* block, size_t bytes) {
  static _Atomic(void (*)(void*, void*, size_t)) forward;
  pthread_once(&once, initialise);
  if (block && bytes) {
    atomic_fetch_add(&allocations, 1);
    change_live((int64_t)bytes - (int64_t)put((uintptr_t)block, bytes));
  }
  if (!forward) forward = (void (*)(void*, void*, size_t))in_libc10(NAME_OF(NEW));
  if (forward) forward(self, block, bytes);
}

EXPORT void DELETE(void* self, void* block) {
  static _Atomic(void (*)(void*, void*)) forward;
  pthread_once(&once, initialise);
  if (block) change_live(-(int64_t)take((uintptr_t)block));
  if (!forward) forward = (void (*)(void*, void*))in_libc10(NAME_OF(DELETE));
  if (forward) forward(self, block);
}
