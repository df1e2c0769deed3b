/* A libnvidia-ml.so.1 whose GPUs lie in a file that a test maps and changes while others ask; see gpus.py. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LIBRARY_NOT_FOUND = 12, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { DEVICES = 8, PROCESSES = 8, MIGS = 4, XIDS = 32, MIG_HANDLE = 0x100, RECOVERY_ACTION = 230 };
enum { XID_EVENT = 8 };

typedef struct { uint32_t pid, unused; uint64_t bytes; } Process;
typedef struct { char uuid[64]; uint64_t used; } Mig;
typedef struct {
    char uuid[64], bus_id[32];
    uint64_t total, used, ecc_errors;
    uint32_t minor, is_lost, memory_status, action_status, action, ecc_status, remap_failed, remap_pending;
    uint32_t links, links_up, clique, processes, migs, model, rows_status, links_status;
    uint8_t cluster[16];
    Process process[PROCESSES];
    Mig mig[MIGS];
} Device;
typedef struct { uint32_t device, xid, instance; } Xid;
typedef struct {
    uint32_t devices, init_status, hangs, calls, inits, xids, old_driver, crashes, counted_more, device_hangs;
    Xid xid[XIDS];
    Device device[DEVICES];
} State;

static State *state;
static uint32_t xids_taken;

static State *gpus(void) {
    if (!state) {
        int file = open(getenv("FAKE_GPUS"), O_RDWR | O_CLOEXEC);
        if (file < 0) abort();
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (state == MAP_FAILED) abort();
    }
    __atomic_add_fetch(&state->calls, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&state->crashes, __ATOMIC_ACQUIRE)) abort();
    while (__atomic_load_n(&state->hangs, __ATOMIC_ACQUIRE)) usleep(1000);
    return state;
}
static Device *at(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    while (__atomic_load_n(&gpus()->device_hangs, __ATOMIC_ACQUIRE)) usleep(1000);
    return &gpus()->device[number >= MIG_HANDLE ? (number - MIG_HANDLE) / MIGS : number - 1];
}
static Mig *mig_at(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    return number >= MIG_HANDLE ? &at(handle)->mig[(number - MIG_HANDLE) % MIGS] : NULL;
}
static int copy(const char *from, char *to, unsigned length) {
    strncpy(to, from, length - 1);
    to[length - 1] = 0;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    gpus()->inits++;
    return (int)gpus()->init_status;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) {
    return status == NOT_SUPPORTED ? "Not Supported" : status == DRIVER_NOT_LOADED ? "Driver Not Loaded"
         : status == UNKNOWN ? "Unknown Error"
         : status == GPU_IS_LOST ? "GPU is lost" : status == NOT_FOUND ? "Not Found" : "Some Error";
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = gpus()->devices + state->counted_more;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= gpus()->devices) return INVALID_ARGUMENT;
    if (state->device[index].is_lost) return GPU_IS_LOST;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (unsigned i = 0; i < gpus()->devices; i++) {
        if (!strcmp(uuid, state->device[i].uuid)) return nvmlDeviceGetHandleByIndex_v2(i, device);
        for (unsigned slice = 0; slice < state->device[i].migs; slice++)
            if (!strcmp(uuid, state->device[i].mig[slice].uuid)) {
                *device = (void *)(uintptr_t)(MIG_HANDLE + i * MIGS + slice);
                return SUCCESS;
            }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) {
    *index = (unsigned)(at(device) - gpus()->device);
    return SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_mig) { *is_mig = mig_at(device) != NULL; return SUCCESS; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) {
    *device = (void *)(uintptr_t)(((uintptr_t)slice - MIG_HANDLE) / MIGS + 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    return copy(mig_at(device) ? mig_at(device)->uuid : at(device)->uuid, uuid, length);
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    return copy(at(device)->model ? "Slow GPU" : "Fast GPU", name, length);
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = at(device)->minor; return SUCCESS; }

typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *info) {
    memset(info, 0, sizeof *info);
    return copy(at(device)->bus_id, info->bus_id, sizeof info->bus_id);
}

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;
static uint64_t used_by(void *device) { return mig_at(device) ? mig_at(device)->used : at(device)->used; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    Device *of = at(device);
    *memory = (Memory){of->total, of->total - used_by(device), used_by(device)};
    return (int)of->memory_status;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *memory) {
    Device *of = at(device);
    if (state->old_driver) return NOT_SUPPORTED;
    memory->total = of->total;
    memory->reserved = 600 << 20;
    memory->used = used_by(device);
    memory->free = of->total - memory->used - memory->reserved;
    return of->is_lost ? GPU_IS_LOST : (int)of->memory_status;
}

typedef struct { uint32_t pid; uint64_t bytes; uint32_t gpu_instance, compute_instance; } ProcessInfo;
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *infos) {
    Device *of = at(device);
    if (!of->processes) { *count = 0; return SUCCESS; }
    if (!infos || *count < of->processes) { *count = of->processes; return INSUFFICIENT_SIZE; }
    *count = of->processes;
    for (unsigned i = 0; i < *count; i++) infos[i] = (ProcessInfo){of->process[i].pid, of->process[i].bytes, 0, 0};
    return SUCCESS;
}

typedef struct { uint32_t field, scope; int64_t at, latency; uint32_t type, status; uint64_t value; } FieldValue;
int nvmlDeviceGetFieldValues(void *device, int count, FieldValue *values) {
    Device *of = at(device);
    for (int i = 0; i < count; i++) {
        values[i].status = values[i].field == RECOVERY_ACTION ? of->action_status : NOT_SUPPORTED;
        values[i].value = of->action;
    }
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, uint64_t *errors) {
    (void)kind, (void)counter;
    *errors = at(device)->ecc_errors;
    return (int)at(device)->ecc_status;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = at(device)->remap_pending;
    *failed = at(device)->remap_failed;
    return (int)at(device)->rows_status;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *is_active) {
    if (at(device)->links_status) return (int)at(device)->links_status;
    if (link >= at(device)->links) return INVALID_ARGUMENT;
    *is_active = at(device)->links_up >> link & 1;
    return SUCCESS;
}

typedef struct { uint32_t version; uint8_t cluster[16]; uint32_t status, clique; uint8_t state; uint32_t health; } Fabric;
int nvmlDeviceGetGpuFabricInfoV(void *device, Fabric *info) {
    Device *of = at(device);
    if (state->old_driver) return NOT_SUPPORTED;
    memcpy(info->cluster, of->cluster, sizeof of->cluster);
    info->status = SUCCESS;
    info->clique = of->clique;
    return SUCCESS;
}

/* Events: those that the test appends once a process has a set, each told once to each process. */
int nvmlEventSetCreate(void **set) {
    *set = (void *)1;
    xids_taken = gpus()->xids;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) {
    (void)set;
    (void)at(device);
    return kinds & XID_EVENT ? SUCCESS : NOT_SUPPORTED;
}
typedef struct { void *device; unsigned long long kind, data; uint32_t gpu_instance, compute_instance; } EventData;
int nvmlEventSetWait_v2(void *set, EventData *event, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    if (xids_taken >= gpus()->xids) return TIMEOUT;
    Xid xid = state->xid[xids_taken++ % XIDS];
    *event = (EventData){(void *)(uintptr_t)(xid.device + 1), XID_EVENT, xid.xid, xid.instance, xid.instance};
    return SUCCESS;
}
