/* Opens each shared library that an argument names, in that order and with its names for all, then calls each one's
   generation_check. Ends with 1 where one fails. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char** paths) {
    void* libraries[8];
    int i;
    for (i = 1; i < count && i < 8; ++i) {
        libraries[i] = dlopen(paths[i], RTLD_NOW | RTLD_GLOBAL);
        if (libraries[i] == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
    }
    for (i = 1; i < count && i < 8; ++i) {
        void* const found = dlsym(libraries[i], "generation_check");
        int (*check)(void);
        int line;
        if (found == NULL) {
            return 2;
        }
        memcpy(&check, &found, sizeof check);
        line = check();
        if (line != 0) {
            fprintf(stderr, "%s: line %d\n", paths[i], line);
            return 1;
        }
    }
    return 0;
}
