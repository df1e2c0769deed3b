/* A libnvidia-ml.so.1 that says what the environment tells it to; only what pynvml asks of it in our checks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { RECOVERY_ACTION = 230, LINKS = 4, GPUS = 2 };

typedef struct { uint32_t field; uint32_t scope; int64_t at; int64_t latency; uint32_t type; uint32_t status; uint64_t value; } FieldValue;
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_NVML_HANGS")) for (;;) pause();
    return number("FAKE_NVML_INIT", SUCCESS);
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { return status == NOT_SUPPORTED ? "Not Supported" : "Some Error"; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    if ((int)index == number("FAKE_NVML_LOST", -1)) return GPU_IS_LOST;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%s", (uintptr_t)device == 1 ? "zero" : "one");
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:3%X:00.0", (unsigned)((uintptr_t)device - 1));
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(void *device, int count, FieldValue *values) {
    char name[32];
    snprintf(name, sizeof name, "FAKE_NVML_ACTION_%u", (unsigned)((uintptr_t)device - 1));
    for (int i = 0; i < count; i++) {
        values[i].status = values[i].field == RECOVERY_ACTION ? number("FAKE_NVML_FIELD", SUCCESS) : NOT_SUPPORTED;
        values[i].value = (uint64_t)number(name, 0);
    }
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *is_active) {
    (void)device;
    if (link >= LINKS) return INVALID_ARGUMENT;
    *is_active = (int)link != number("FAKE_NVML_LINK_DOWN", -1);
    return SUCCESS;
}
