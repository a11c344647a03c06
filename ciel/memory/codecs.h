/* Compresses pages by liblz4 and libzstd, which are loaded when a volume needs them. */
#ifndef CIEL_CODECS_H
#define CIEL_CODECS_H

#include <stdint.h>

enum codec { CODEC_NONE = 0, CODEC_LZ4 = 1, CODEC_ZSTD = 2, CODEC_MISSING = -1 };

/* Return the codec of a name, "" for none, and load its library. CODEC_MISSING: there is none. */
enum codec page_codec(const char *name);

struct packer;

/* NULL: no memory. Each thread has its own. */
struct packer *packer_open(enum codec codec);
void packer_close(struct packer *packer);

/* Pack a page into PAGE_BYTES at `to`; return the length. 0: the page has only zeros. PAGE_BYTES:
 * packing does not save a quarter, so the page itself is at `to`. */
uint32_t pack_page(struct packer *packer, const uint8_t *page, uint8_t *to);

/* Whether a packed page could be unpacked. */
int unpack_page(struct packer *packer, const uint8_t *from, uint32_t length, uint8_t *page);

#endif
