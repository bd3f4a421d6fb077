/* The least that any look through NVML costs: load the library, open it, read memory and the three process lists of
 * every device, close it. Nothing is printed but errors and, with an argument, what was read.
 *
 *     cc -O2 -o floor floor.c -ldl
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gi, ci;
} process_t;

static void *library;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "floor: %s is not in the library\n", name);
        exit(2);
    }
    return found;
}

static void check(const char *what, int code)
{
    if (code != 0) {
        fprintf(stderr, "floor: %s answered %d\n", what, code);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "floor: %s\n", dlerror());
        return 2;
    }
    int (*init)(void) = symbol("nvmlInit_v2");
    int (*count_devices)(unsigned *) = symbol("nvmlDeviceGetCount_v2");
    int (*handle_of)(unsigned, void **) = symbol("nvmlDeviceGetHandleByIndex_v2");
    int (*memory_of)(void *, memory_t *) = symbol("nvmlDeviceGetMemoryInfo_v2");
    static const char *const names[] = {
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    };
    int (*lists[3])(void *, unsigned *, process_t *);
    for (int i = 0; i < 3; i++)
        lists[i] = symbol(names[i]);
    int (*shut)(void) = symbol("nvmlShutdown");

    check("nvmlInit_v2", init());
    unsigned devices = 0;
    check("nvmlDeviceGetCount_v2", count_devices(&devices));
    for (unsigned index = 0; index < devices; index++) {
        void *handle = NULL;
        check("nvmlDeviceGetHandleByIndex_v2", handle_of(index, &handle));
        memory_t memory = {.version = (unsigned)sizeof(memory_t) | 2u << 24};
        check("nvmlDeviceGetMemoryInfo_v2", memory_of(handle, &memory));
        unsigned listed = 0;
        for (int i = 0; i < 3; i++) {
            static process_t entries[512];
            unsigned count = 512;
            check(names[i], lists[i](handle, &count, entries));
            listed += count;
        }
        if (argc > 1)
            printf("GPU %u: %llu bytes used, %u entries\n", index, memory.used, listed);
    }
    check("nvmlShutdown", shut());
    return 0;
}
