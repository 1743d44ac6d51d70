/* Two models in one process, as docs/which-model.md shows them: each runtime's adapter has the model's name. Calls the
   adapters as TensorRT 10 and later do, by the slots of nvinfer1::IGpuAllocator. */
#include <string.h>

#include "check.h"

enum { TENSORRT = 110400, MIB = 1 << 20 };

typedef struct {
  void *const *table;
} adapter;

static void *allocate(adapter *self, uint64_t size) {
  void *(*slot)(adapter *, uint64_t, uint64_t, uint32_t) = NULL;
  memcpy(&slot, &self->table[4], sizeof slot);
  return slot(self, size, 0, 0);
}

static bool deallocate(adapter *self, void *memory) {
  bool (*slot)(adapter *, void *) = NULL;
  memcpy(&slot, &self->table[6], sizeof slot);
  return slot(self, memory);
}

static adapter *named(const char *name) {
  return (adapter *)trtalloc_tensorrt_allocator_named(trtalloc_default(), TENSORRT, name);
}

int main(void) {
  adapter *resnet = named("resnet"), *bert = named("bert");
  void *weights[2], *activations[2], *answers;
  static char metrics[1 << 16];
  CHECK(resnet != NULL && bert != NULL && resnet != bert && named("resnet") == resnet);
  CHECK(named(NULL) == trtalloc_tensorrt_allocator(trtalloc_default(), TENSORRT));
  weights[0] = allocate(resnet, 98 * MIB);
  weights[1] = allocate(bert, 418 * MIB);
  activations[0] = allocate(resnet, 24 * MIB);
  activations[1] = allocate(bert, 160 * MIB);
  trtalloc_set_tag("postprocessing");
  answers = trtalloc_allocate(trtalloc_default(), 8 * MIB, 0, 0);
  trtalloc_set_tag(NULL);
  CHECK(weights[0] && weights[1] && activations[0] && activations[1] && answers);

  /* bert may have 600 MiB; other models are not concerned. */
  CHECK(trtalloc_set_tag_limit(trtalloc_default(), -1, "bert", (uint64_t)600 * MIB) == TRTALLOC_STATUS_OK);
  CHECK(allocate(bert, 64 * MIB) == NULL);
  fprintf(stderr, "%s\n", trtalloc_last_error());

  CHECK(trtalloc_metrics(trtalloc_default(), metrics, sizeof metrics) < sizeof metrics);
  for (const char *line = strtok(metrics, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    if (strncmp(line, "trtalloc_tag_allocated_bytes{", 29) == 0) fprintf(stderr, "%s\n", line);
  }
  CHECK(deallocate(resnet, weights[0]) && deallocate(resnet, activations[0]));
  return 0; /* bert and the answers stay, as where a server is killed */
}
