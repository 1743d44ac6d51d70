/* Beside the stand-in for TensorRT: what ONNX Runtime asks TensorRT's parser and its plugins for. A registry without plugins,
   every one of whose functions gives nothing; what must not be called says so. */
#include <stdio.h>
#include <stdlib.h>

#define REFUSED(name)                                       \
    void* name(void);                                       \
    void* name(void)                                        \
    {                                                       \
        fprintf(stderr, "stand-in: " #name " was called\n"); \
        abort();                                            \
    }

REFUSED(createNvOnnxParser_INTERNAL)
REFUSED(createNvOnnxParserRefitter_INTERNAL)

static void* nothing(void)
{
    return NULL;
}

#define FOUR nothing, nothing, nothing, nothing
static void* (*const table[])(void) = {FOUR, FOUR, FOUR, FOUR, FOUR, FOUR, FOUR, FOUR};
static void const* registry = (void const*) table;

void* getPluginRegistry(void);

void* getPluginRegistry(void)
{
    return (void*) &registry;
}

int initLibNvInferPlugins(void* logger, char const* name);

int initLibNvInferPlugins(void* logger, char const* name)
{
    (void) logger;
    (void) name;
    return 1;
}
