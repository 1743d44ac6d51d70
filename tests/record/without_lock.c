/* What tests of Python's frames need from C: a lock, a signal handler, a thread that outlives the interpreter, and a filter
   of system calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef void *(*allocate_function)(void *, uint64_t, uint64_t, uint32_t);
typedef _Bool (*deallocate_function)(void *, void *);

static allocate_function allocate;
static deallocate_function deallocate;
static void *allocator;

void use(void *get, void *give, void *of) {
  allocate = *(allocate_function *)&get;
  deallocate = *(deallocate_function *)&give;
  allocator = of;
}

static void wait_us(long us) {
  struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

/* TensorRT's lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int locked, waits;

/* Called without the interpreter's lock: allocates with the other lock, once another thread waits for it. */
void *allocate_with_the_lock(uint64_t size) {
  void *block;
  pthread_mutex_lock(&lock);
  locked = 1;
  while (!waits) wait_us(1000);
  wait_us(50000);
  block = allocate(allocator, size, 0, 0);
  pthread_mutex_unlock(&lock);
  return block;
}

int is_locked(void) { return locked; }

/* Called with the interpreter's lock. */
void wait_for_the_lock(void) {
  waits = 1;
  pthread_mutex_lock(&lock);
  pthread_mutex_unlock(&lock);
}

static void linger(void) { wait_us(50000); }

/* The process lives for a while after the interpreter has ended. */
int outlive_the_interpreter(void) { return atexit(linger); }

/* Never returns. */
void allocate_for_ever(uint64_t size) {
  for (;;) {
    void *block = allocate(allocator, size, 0, 0);
    if (block) deallocate(allocator, block);
    wait_us(20);
  }
}

static uint64_t size_in_handler;

static void on_signal(int number) {
  (void)number;
  allocate(allocator, size_in_handler, 0, 0);
}

/* Sends this thread a signal whose handler allocates; on a stack of its own, where that is asked for. */
int allocate_in_handler(uint64_t size, int own_stack) {
  static char room[512 << 10];
  stack_t stack, before;
  struct sigaction action;
  memset(&stack, 0, sizeof stack);
  memset(&action, 0, sizeof action);
  stack.ss_sp = room;
  stack.ss_size = sizeof room;
  action.sa_handler = on_signal;
  action.sa_flags = own_stack ? SA_ONSTACK : 0;
  size_in_handler = size;
  if (sigaltstack(&stack, &before) != 0) return 1;
  if (sigaction(SIGUSR1, &action, NULL) != 0) return 1;
  if (raise(SIGUSR1) != 0) return 1;
  return sigaltstack(&before, NULL);
}

/* From now on, the kernel refuses this thread process_vm_readv. */
int refuse_reading(void) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}
