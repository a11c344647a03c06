#include "codecs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "page_server.h"

enum {
    PACKED_MAX = PAGE_BYTES - PAGE_BYTES / 4, /* a longer page would take a whole one at the server */
    ZSTD_LEVEL = 1,
};

/* The parts of the libraries' interfaces that are used here; both promise not to change them. */
static struct {
    int (*lz4_compress)(const char *from, char *to, int size, int room);
    int (*lz4_decompress)(const char *from, char *to, int size, int room);
    void *(*zstd_open_packer)(void);
    size_t (*zstd_close_packer)(void *packer);
    size_t (*zstd_pack)(void *packer, void *to, size_t room, const void *from, size_t size, int level);
    void *(*zstd_open_unpacker)(void);
    size_t (*zstd_close_unpacker)(void *unpacker);
    size_t (*zstd_unpack)(void *unpacker, void *to, size_t room, const void *from, size_t size);
    unsigned (*zstd_failed)(size_t result);
} library;

struct packer {
    enum codec codec;
    void *zstd, *unzstd;
};

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* Find a function; `is_complete` becomes 0 if the library lacks it. */
static void *find(void *handle, const char *name, int *is_complete)
{
    void *found = handle == NULL ? NULL : dlsym(handle, name);

    *is_complete &= found != NULL;
    return found;
}

#define FIND(field, name) (*(void **)&library.field = find(handle, name, &is_complete))

static int load_lz4(void)
{
    void *handle = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
    int is_complete = 1;

    FIND(lz4_compress, "LZ4_compress_default");
    FIND(lz4_decompress, "LZ4_decompress_safe");
    return is_complete;
}

static int load_zstd(void)
{
    void *handle = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    int is_complete = 1;

    FIND(zstd_open_packer, "ZSTD_createCCtx");
    FIND(zstd_close_packer, "ZSTD_freeCCtx");
    FIND(zstd_pack, "ZSTD_compressCCtx");
    FIND(zstd_open_unpacker, "ZSTD_createDCtx");
    FIND(zstd_close_unpacker, "ZSTD_freeDCtx");
    FIND(zstd_unpack, "ZSTD_decompressDCtx");
    FIND(zstd_failed, "ZSTD_isError");
    return is_complete;
}

enum codec page_codec(const char *name)
{
    enum codec codec = CODEC_MISSING;

    pthread_mutex_lock(&loading);
    if (name[0] == 0)
        codec = CODEC_NONE;
    else if (strcmp(name, "lz4") == 0 && load_lz4())
        codec = CODEC_LZ4;
    else if (strcmp(name, "zstd") == 0 && load_zstd())
        codec = CODEC_ZSTD;
    pthread_mutex_unlock(&loading);
    return codec;
}

struct packer *packer_open(enum codec codec)
{
    struct packer *packer = calloc(1, sizeof *packer);

    if (packer == NULL)
        return NULL;
    packer->codec = codec;
    if (codec == CODEC_ZSTD) {
        packer->zstd = library.zstd_open_packer();
        packer->unzstd = library.zstd_open_unpacker();
        if (packer->zstd == NULL || packer->unzstd == NULL) {
            packer_close(packer);
            return NULL;
        }
    }
    return packer;
}

void packer_close(struct packer *packer)
{
    if (packer != NULL && packer->codec == CODEC_ZSTD) {
        library.zstd_close_packer(packer->zstd);
        library.zstd_close_unpacker(packer->unzstd);
    }
    free(packer);
}

static int is_zeros(const uint8_t *page)
{
    uint64_t first;

    memcpy(&first, page, sizeof first);
    return first == 0 && memcmp(page, page + 8, PAGE_BYTES - 8) == 0;
}

uint32_t pack_page(struct packer *packer, const uint8_t *page, uint8_t *to)
{
    size_t length = 0;

    if (is_zeros(page))
        return 0;
    if (packer->codec == CODEC_LZ4)
        length = (size_t)library.lz4_compress((const char *)page, (char *)to, PAGE_BYTES, PACKED_MAX);
    else
        length = library.zstd_pack(packer->zstd, to, PACKED_MAX, page, PAGE_BYTES, ZSTD_LEVEL);
    if (length > 0 && length <= PACKED_MAX) /* an error of libzstd is a larger number */
        return (uint32_t)length;
    memcpy(to, page, PAGE_BYTES);
    return PAGE_BYTES;
}

int unpack_page(struct packer *packer, const uint8_t *from, uint32_t length, uint8_t *page)
{
    if (length == 0) {
        memset(page, 0, PAGE_BYTES);
        return 1;
    }
    if (length == PAGE_BYTES) {
        memcpy(page, from, PAGE_BYTES);
        return 1;
    }
    if (packer->codec == CODEC_LZ4)
        return library.lz4_decompress((const char *)from, (char *)page, (int)length, PAGE_BYTES) ==
               PAGE_BYTES;
    size_t unpacked = library.zstd_unpack(packer->unzstd, page, PAGE_BYTES, from, length);
    return !library.zstd_failed(unpacked) && unpacked == PAGE_BYTES;
}
