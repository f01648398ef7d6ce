/* error.c: the last error's text and the names of the codes. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[sizeof(((recur_i_text *)0)->data)];

const char *recur_last_error(void) { return last_error; }

static void append_list(recur_i_text *text, const char *format, va_list list) {
  size_t room = sizeof text->data - text->used;
  int length = vsnprintf(text->data + text->used, room, format, list);
  if (length < 0)
    return;
  if ((size_t)length < room) {
    text->used += (size_t)length;
    return;
  }
  text->used = sizeof text->data - 1;
  memcpy(text->data + text->used - 3, "...", 4);
}

void recur_i_append(recur_i_text *text, const char *format, ...) {
  va_list list;
  va_start(list, format);
  append_list(text, format, list);
  va_end(list);
}

int32_t recur_i_fail(const recur_model *model, const char *entry, int32_t code, const char *format, ...) {
  recur_i_text text = {0};
  if (model)
    recur_i_append(&text, "%s_%s: ", model->name, entry);
  va_list list;
  va_start(list, format);
  append_list(&text, format, list);
  va_end(list);
  memcpy(last_error, text.data, text.used + 1);

  const recur_i_reporter reporter = recur_i_reporter_now();
  if (reporter.handler)
    reporter.handler(reporter.context, code, last_error);
  return code;
}

const char *recur_error_name(int32_t code) {
  switch (code) {
  case RECUR_OK:
    return "RECUR_OK";
  case RECUR_ERROR_VERSION:
    return "RECUR_ERROR_VERSION";
  case RECUR_ERROR_NULL:
    return "RECUR_ERROR_NULL";
  case RECUR_ERROR_DEVICE:
    return "RECUR_ERROR_DEVICE";
  case RECUR_ERROR_DTYPE:
    return "RECUR_ERROR_DTYPE";
  case RECUR_ERROR_SHAPE:
    return "RECUR_ERROR_SHAPE";
  case RECUR_ERROR_STRIDE:
    return "RECUR_ERROR_STRIDE";
  case RECUR_ERROR_ALIGNMENT:
    return "RECUR_ERROR_ALIGNMENT";
  case RECUR_ERROR_SEQUENCES:
    return "RECUR_ERROR_SEQUENCES";
  case RECUR_ERROR_INDEX:
    return "RECUR_ERROR_INDEX";
  case RECUR_ERROR_POSITION:
    return "RECUR_ERROR_POSITION";
  case RECUR_ERROR_VARIANT:
    return "RECUR_ERROR_VARIANT";
  case RECUR_ERROR_TARGET:
    return "RECUR_ERROR_TARGET";
  case RECUR_ERROR_WORKSPACE:
    return "RECUR_ERROR_WORKSPACE";
  case RECUR_ERROR_THREADS:
    return "RECUR_ERROR_THREADS";
  case RECUR_ERROR_CUDA:
    return "RECUR_ERROR_CUDA";
  }
  return "unknown";
}
