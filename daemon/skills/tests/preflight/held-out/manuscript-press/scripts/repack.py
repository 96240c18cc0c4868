import shutil, sys, zipfile
src, dst = sys.argv[1:3]
shutil.rmtree(dst, ignore_errors=True)
with zipfile.ZipFile(src) as z:
    z.extractall(dst)
