/* Calls the allocator from a thread of C, which the interpreter does not know, while Python waits for it. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef void *(*allocate_function)(void *, uint64_t, uint64_t, uint32_t);

static struct {
  allocate_function allocate;
  void *allocator;
  uint64_t size;
  void *block;
} order;

static void *work(void *unused) {
  (void)unused;
  order.block = order.allocate(order.allocator, order.size, 0, 0);
  return NULL;
}

void *on_a_thread_of_c(void *allocate, void *allocator, uint64_t size) {
  pthread_t thread;
  order.allocate = *(allocate_function *)&allocate;
  order.allocator = allocator;
  order.size = size;
  if (pthread_create(&thread, NULL, work, NULL) != 0) return NULL;
  pthread_join(thread, NULL);
  return order.block;
}
