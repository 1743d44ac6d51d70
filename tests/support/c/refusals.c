/* What needs no driver: nulls, unreadable options, what is not there yet, and the process's own allocator at rest. */
#include <string.h>

#include "check.h"

static bool again(void *context, int32_t device, uint64_t size) {
  (void)context, (void)device, (void)size;
  return false;
}

static void nulls(void) {
  trtalloc_stats stats;
  int block;
  REFUSED(trtalloc_allocate(NULL, 1, 0, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "allocator is NULL") != NULL);
  REFUSED(trtalloc_allocate_async(NULL, 1, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_allocate_on(NULL, 0, 1, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_reallocate(NULL, &block, 0, 1), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_deallocate(NULL, &block), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_deallocate_async(NULL, &block, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_record_stream(NULL, &block, NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_stream_release(NULL, NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_stats_get(NULL, -1, &stats, sizeof stats) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_stats_get(trtalloc_default(), -1, NULL, sizeof stats) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_stats_reset_peaks(NULL, -1) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_trim(NULL, -1, 0, NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_set_limit(NULL, -1, 0) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_history(NULL, "off") == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_history(trtalloc_default(), NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_snapshot(NULL, "x.json") == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_snapshot(trtalloc_default(), NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_on_oom(NULL, again, NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_tensorrt_allocator(NULL, 110400), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_tensorrt_output_allocator(NULL, 110400), TRTALLOC_STATUS_INVALID_ARGUMENT);
  trtalloc_destroy(NULL);
  trtalloc_set_tag(NULL);
  trtalloc_set_tag("tag");
}

static void options(void) {
  trtalloc_allocator *allocator = (trtalloc_allocator *)1;
  CHECK(trtalloc_create("driver=sim", NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_create("driver=sim,limit=lots", &allocator) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(allocator == NULL);
  CHECK(strstr(trtalloc_last_error(), "`lots`") != NULL);
  CHECK(trtalloc_create("limits=4GiB", &allocator) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "`limits`") != NULL);
  CHECK(trtalloc_create("log=\xff", &allocator) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "UTF-8") != NULL);
  CHECK(trtalloc_create_from(NULL, 0, "pad=7", &allocator) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(allocator == NULL);
}

/* What a call that fails is given to write to stays as it was. */
static void unwritten(trtalloc_allocator *own) {
  void *outputs = trtalloc_tensorrt_output_allocator(own, 110400);
  uint64_t released = 77;
  trtalloc_stats stats;
  trtalloc_tag_stats of_tag;
  trtalloc_output output;
  char text[4] = "abc";
  stats.allocated = of_tag.allocated = output.bytes = 77;
  CHECK(outputs != NULL);
  CHECK(trtalloc_trim(own, 99, 0, &released) == TRTALLOC_STATUS_INVALID_ARGUMENT && released == 77);
  CHECK(trtalloc_stats_get(own, 99, &stats, sizeof stats) == TRTALLOC_STATUS_INVALID_ARGUMENT && stats.allocated == 77);
  CHECK(trtalloc_tag_stats_get(own, 99, "tag", &of_tag, sizeof of_tag) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_output_get(outputs, "none", &output) == TRTALLOC_STATUS_INVALID_ARGUMENT && output.bytes == 77);
  CHECK(trtalloc_output_take(outputs, "none", &output) == TRTALLOC_STATUS_INVALID_ARGUMENT && output.bytes == 77);
  REFUSED(trtalloc_stats_json(own, 99, text, sizeof text), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(of_tag.allocated == 77 && strcmp(text, "abc") == 0);
}

static void at_rest(void) {
  trtalloc_allocator *own = trtalloc_default();
  trtalloc_stats stats;
  unsigned char bytes[sizeof stats + 8];
  uint64_t released = 1;
  size_t size, i;
  int block;

  CHECK(own != NULL && own == trtalloc_default());
  trtalloc_destroy(own);
  CHECK(own == trtalloc_default());
  for (size = 0; size <= sizeof bytes; size++) {
    memset(bytes, 0xee, sizeof bytes);
    CHECK(trtalloc_stats_get(own, -1, (trtalloc_stats *)(void *)bytes, size) == TRTALLOC_STATUS_OK);
    for (i = 0; i < sizeof bytes; i++) CHECK(bytes[i] == (i < size ? 0 : 0xee));
  }
  CHECK(trtalloc_stats_reset_peaks(own, -1) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_trim(own, -1, 0, &released) == TRTALLOC_STATUS_OK && released == 0);
  CHECK(trtalloc_trim(own, 0, 0, NULL) == TRTALLOC_STATUS_OK);
  unwritten(own);
  CHECK(trtalloc_stream_release(own, NULL) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_record_stream(own, &block, NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);

  CHECK(trtalloc_deallocate(own, NULL));
  CHECK(trtalloc_deallocate_async(own, NULL, NULL));
  REFUSED(trtalloc_deallocate(own, &block), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "not of a block") != NULL);
  REFUSED(trtalloc_deallocate_async(own, &block, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_reallocate(own, &block, 0, 8), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_allocate(own, 0, 0, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "size is 0") != NULL);
  REFUSED(trtalloc_allocate_async(own, 0, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_allocate_on(own, -1, 0, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  trtalloc_torch_free(NULL, 0, 0, NULL);
  trtalloc_torch_record_stream(&block, NULL);
  trtalloc_ort_free(NULL);
  trtalloc_ort_empty_cache();
  trtalloc_cupy_free(NULL, NULL, 0);
  trtalloc_dlpack_release(NULL, true);
  CHECK(trtalloc_dlpack_capsule(NULL, NULL, false) == NULL);
  REFUSED(trtalloc_dlpack_allocate(0, 0, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_dlpack_get(NULL, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_dlpack_reallocate(NULL, 8), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_dlpack_export(NULL, 1, 8, NULL, 0, NULL, true), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_torch_malloc(0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_ort_alloc(0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_cupy_malloc(NULL, 0, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
}

static void later(void) {
  trtalloc_allocator *own = trtalloc_default();
  /* Opening the driver may fail here, and is then the reason that is left. */
  CHECK(trtalloc_snapshot(own, "x.txt") == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "html") != NULL);
  CHECK(trtalloc_inject(1) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_inject(0) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_inject(2) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_tensorrt_output_allocator(own, 7201), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "no TensorRT has version 7201") != NULL);
  REFUSED(trtalloc_tensorrt_allocator(own, 7201), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "no TensorRT has version 7201") != NULL);
  REFUSED(trtalloc_tensorrt_allocator(own, 120000), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_tensorrt_allocator(own, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_tensorrt_allocator(own, 110400) != NULL);
  CHECK(trtalloc_tensorrt_allocator(own, 110400) == trtalloc_tensorrt_allocator(own, 10300));
  CHECK(trtalloc_tensorrt_allocator(own, 8601) != NULL);
  CHECK(trtalloc_tensorrt_allocator(own, 8601) != trtalloc_tensorrt_allocator(own, 110400));
}

/* The words and the number are of the same failure, and a call that succeeds leaves both. */
static void last(void) {
  char words[512], name[300];
  CHECK(trtalloc_snapshot(trtalloc_default(), "/nowhere/x.json") == TRTALLOC_STATUS_IO);
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_IO);
  strncpy(words, trtalloc_last_error(), sizeof words - 1);
  words[sizeof words - 1] = 0;
  CHECK(strstr(words, "io: ") == words);
  CHECK(trtalloc_deallocate(trtalloc_default(), NULL));
  CHECK(trtalloc_inject(0) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_IO && strcmp(trtalloc_last_error(), words) == 0);
  REFUSED(trtalloc_stats_json(NULL, -1, words, sizeof words), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_snapshot(trtalloc_default(), "/nowhere/x.json") == TRTALLOC_STATUS_IO);
  REFUSED(trtalloc_metrics(NULL, words, sizeof words), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_snapshot(trtalloc_default(), "/nowhere/x.json") == TRTALLOC_STATUS_IO);
  /* A path has any bytes. */
  CHECK(trtalloc_snapshot(trtalloc_default(), "/nowhere/\xff.json") == TRTALLOC_STATUS_IO);
  memset(name, 'x', sizeof name);
  name[sizeof name - 1] = 0;
  trtalloc_set_tag(name);
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
}

int main(void) {
  CHECK(strcmp(trtalloc_last_error(), "") == 0);
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_OK);
  CHECK(strcmp(trtalloc_version(), TRTALLOC_EXPECTED_VERSION) == 0);
  nulls();
  options();
  at_rest();
  later();
  last();
  return 0;
}
