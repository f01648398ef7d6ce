/* pool.c: the thread pool that is the default parallel loop.
 *
 * The pool starts its threads at the first loop that wants them. An open loop is a `job` on its caller's
 * stack, in a list; sleeping threads are woken, join a job as long as it has tasks and free worker numbers,
 * and take tasks from its counter. The caller works too, and then waits only for those who joined: a thread
 * that wakes late finds the job gone. So any number of callers may be in the pool at once. A loop inside a
 * task runs serially.
 *
 * To wake a thread takes longer than many a call. So a thread that is done looks out for the next job for a
 * moment before it sleeps, and so does a caller for those who joined, unless there are more threads than
 * CPUs.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_OUT = 200000 }; /* ns that a thread looks out before it sleeps */

/** One open loop. What is not atomic is guarded by pool.mutex or never changes. */
typedef struct job {
  recur_task body;
  void *data;
  int64_t tasks, grain;
  atomic_int_least64_t next; /**< first task that nobody took */
  int32_t workers;           /**< worker numbers there are */
  int32_t joined;            /**< worker numbers handed out; the caller has 0 */
  atomic_int active;         /**< threads of the pool inside; written with the mutex held */
  struct job *following;
} job;

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t wake; /**< a job was opened, or the pool stops */
  pthread_cond_t left; /**< the last thread left some job */
  job *jobs;
  int32_t started;
  int32_t awake;        /**< threads that look out for a job */
  atomic_bool crowded;  /**< there are more threads than CPUs */
  atomic_uint opened;   /**< jobs so far */
  bool registered;      /**< the handlers of fork and exit are in place */
  atomic_bool stopping; /**< the process exits or the library is unloaded */
  pthread_t threads[RECUR_I_MAX_THREADS];
} pool = {
    .mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

static _Thread_local bool in_task;

/** Takes tasks until there are none. Threads of the pool also stop at exit; the caller then does the rest. */
static void work(job *j, int32_t worker) {
  in_task = true;
  for (;;) {
    if (worker && atomic_load_explicit(&pool.stopping, memory_order_relaxed))
      break;
    int64_t task = atomic_fetch_add_explicit(&j->next, j->grain, memory_order_relaxed);
    if (task >= j->tasks)
      break;
    const int64_t end = j->tasks - task < j->grain ? j->tasks : task + j->grain;
    for (; task < end; ++task)
      j->body(j->data, task, worker);
  }
  in_task = false;
}

static job *joinable(void) {
  for (job *j = pool.jobs; j; j = j->following)
    if (j->joined < j->workers && atomic_load_explicit(&j->next, memory_order_relaxed) < j->tasks)
      return j;
  return NULL;
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/** Leaves the core's other thread its units for some cycles. */
static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/** Waits a moment, without sleeping, for what `done` tells. */
static void look_out(bool (*done)(const void *), const void *data) {
  if (atomic_load_explicit(&pool.crowded, memory_order_relaxed))
    return;
  for (const int64_t end = nanoseconds() + LOOK_OUT; !done(data) && nanoseconds() < end;)
    relax();
}

static bool is_opened(const void *seen) {
  return atomic_load_explicit(&pool.opened, memory_order_relaxed) != *(const unsigned *)seen ||
         atomic_load_explicit(&pool.stopping, memory_order_relaxed);
}

static bool is_left(const void *of) {
  return !atomic_load_explicit(&((const job *)of)->active, memory_order_relaxed);
}

/** Called with the mutex held, as are joinable and what follows. */
static void wait_for_job(void) {
  const unsigned seen = atomic_load_explicit(&pool.opened, memory_order_relaxed);
  ++pool.awake;
  pthread_mutex_unlock(&pool.mutex);
  look_out(is_opened, &seen);
  pthread_mutex_lock(&pool.mutex);
  --pool.awake;
  while (!is_opened(&seen))
    pthread_cond_wait(&pool.wake, &pool.mutex);
}

static void *thread_main(void *unused) {
  (void)unused;
  pthread_mutex_lock(&pool.mutex);
  while (!atomic_load_explicit(&pool.stopping, memory_order_relaxed)) {
    job *j = joinable();
    if (!j) {
      wait_for_job();
      continue;
    }
    const int32_t worker = j->joined++;
    atomic_fetch_add_explicit(&j->active, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool.mutex);
    work(j, worker);
    pthread_mutex_lock(&pool.mutex);
    if (atomic_fetch_sub_explicit(&j->active, 1, memory_order_relaxed) == 1)
      pthread_cond_broadcast(&pool.left);
  }
  pthread_mutex_unlock(&pool.mutex);
  return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&pool.mutex); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&pool.mutex); }

/** The child has none of the threads; the next loop starts them again. */
static void after_fork_in_child(void) {
  pool.started = 0;
  pool.awake = 0;
  pool.jobs = NULL;
  pool.wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  pool.left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  after_fork_in_parent();
}

/** Runs at exit, and before the code is unmapped if the library was loaded by dlopen. */
static void stop_threads(void) {
  pthread_mutex_lock(&pool.mutex);
  atomic_store_explicit(&pool.stopping, true, memory_order_relaxed);
  pthread_cond_broadcast(&pool.wake);
  const int32_t started = pool.started;
  pool.started = 0;
  pthread_mutex_unlock(&pool.mutex);
  for (int32_t i = 0; i < started; ++i)
    pthread_join(pool.threads[i], NULL);
}

/** Called with the mutex held. A thread that cannot be started is done without. */
static void start_threads(int32_t count) {
  if (pool.started >= count || atomic_load_explicit(&pool.stopping, memory_order_relaxed))
    return;
  if (!pool.registered) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    atexit(stop_threads);
    pool.registered = true;
  }
  sigset_t all, before; /* signals are for the program's own threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (pool.started < count && pthread_create(&pool.threads[pool.started], NULL, thread_main, NULL) == 0)
    ++pool.started;
  atomic_store_explicit(&pool.crowded, pool.started >= sysconf(_SC_NPROCESSORS_ONLN), memory_order_relaxed);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void pool_run(int32_t threads, int64_t tasks, int32_t workers, recur_task body, void *data) {
  /* A few portions per worker: fewer visits to the counter, still balanced. */
  const int64_t portions = (int64_t)workers * 8;
  job mine = {.body = body,
              .data = data,
              .tasks = tasks,
              .grain = tasks > portions ? tasks / portions : 1,
              .workers = workers,
              .joined = 1};
  atomic_init(&mine.next, 0);
  atomic_init(&mine.active, 0);
  pthread_mutex_lock(&pool.mutex);
  start_threads(threads - 1);
  mine.following = pool.jobs;
  pool.jobs = &mine;
  atomic_fetch_add_explicit(&pool.opened, 1, memory_order_relaxed);
  for (int32_t i = 1 + pool.awake; i < workers; ++i)
    pthread_cond_signal(&pool.wake);
  pthread_mutex_unlock(&pool.mutex);

  work(&mine, 0);

  pthread_mutex_lock(&pool.mutex);
  job **link = &pool.jobs;
  while (*link != &mine)
    link = &(*link)->following;
  *link = mine.following;
  pthread_mutex_unlock(&pool.mutex);
  look_out(is_left, &mine);
  pthread_mutex_lock(&pool.mutex);
  while (!is_left(&mine))
    pthread_cond_wait(&pool.left, &pool.mutex);
  pthread_mutex_unlock(&pool.mutex);
}

void recur_i_parallel_for(const recur_i_loop *loop, int64_t tasks, int32_t workers, recur_task body,
                          void *data) {
  if (workers == 1 || in_task) {
    for (int64_t task = 0; task < tasks; ++task)
      body(data, task, 0);
  } else if (loop->run) {
    loop->run(loop->context, tasks, workers, body, data);
  } else {
    pool_run(loop->threads, tasks, workers, body, data);
  }
}
