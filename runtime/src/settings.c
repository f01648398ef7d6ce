/* settings.c: what a process can set, the error handler and the parallel loop, and the number of threads it
 * finds. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static recur_i_reporter reporter; /* guarded by mutex */
static recur_i_loop setting;      /* guarded by mutex; threads 0: as many as the machine gives */

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

/** Registered before the mutex is locked for the first time: a child never inherits it locked by a lost
 * thread. */
static void make_fork_safe(void) { pthread_atfork(lock, unlock, unlock); }

static void enter(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_fork_safe);
  lock();
}

/** RECUR_NUM_THREADS if it is a positive number, else the CPUs that this process may run on. */
static int32_t available_threads(void) {
  static atomic_int cache;
  int found = atomic_load_explicit(&cache, memory_order_relaxed);
  if (found)
    return found;
  long count = 0;
  const char *wish = getenv("RECUR_NUM_THREADS");
  if (wish) {
    char *end = NULL;
    errno = 0;
    count = strtol(wish, &end, 10);
    if (errno || *end || count < 0)
      count = 0;
  }
  cpu_set_t set;
  if (!count && sched_getaffinity(0, sizeof set, &set) == 0)
    count = CPU_COUNT(&set);
  if (!count) /* more CPUs than a cpu_set_t holds */
    count = sysconf(_SC_NPROCESSORS_ONLN);
  found = count < 1 ? 1 : count > RECUR_I_MAX_THREADS ? RECUR_I_MAX_THREADS : (int)count;
  atomic_store_explicit(&cache, found, memory_order_relaxed);
  return found;
}

void recur_set_error_handler(recur_error_handler handler, void *context) {
  enter();
  reporter = (recur_i_reporter){handler, context};
  unlock();
}

recur_i_reporter recur_i_reporter_now(void) {
  enter();
  const recur_i_reporter now = reporter;
  unlock();
  return now;
}

void recur_set_parallel_for(recur_parallel_for loop, void *context, int32_t threads) {
  const int32_t limit = threads < 0 ? 0 : threads > RECUR_I_MAX_THREADS ? RECUR_I_MAX_THREADS : threads;
  enter();
  setting = (recur_i_loop){loop, context, limit};
  unlock();
}

recur_i_loop recur_i_loop_now(const recur_stream *where) {
  enter();
  recur_i_loop now = setting;
  unlock();
  if (!now.threads)
    now.threads = available_threads();
  if (where && where->parallel_for) {
    now.run = where->parallel_for;
    now.context = where->context;
  }
  return now;
}

int32_t recur_threads(void) { return recur_i_loop_now(NULL).threads; }
