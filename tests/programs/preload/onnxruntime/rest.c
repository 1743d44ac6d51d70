/* Complements the stand-in for TensorRT with what ONNX Runtime needs from TensorRT's parser and plugins: a registry
   without plugins, whose functions all return nothing. Functions that must not be called report the call. */
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
